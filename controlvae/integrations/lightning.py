"""Integration with Lightning: a callback that keeps a logged KL at its target.

Needs `pip install lightning`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from controlvae.errors import UserError
from controlvae.integrations._checks import require_packages
from controlvae.integrations.accumulation import PerOptimiserStep
from controlvae.laws import Law

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the same package under its older name
    with require_packages("lightning"):
        from pytorch_lightning import Callback, LightningModule, Trainer


class KLControl(Callback):
    """Callback that reads the logged KL and sets the weight for the next `training_step`.

    >>> trainer = Trainer(callbacks=[KLControl(cv.PI(target=18.0))])
    >>> # in the module's training_step:
    >>> self.log("kl", kl)  # nats per example: summed over latents, averaged over the batch
    >>> return reconstruction + self.beta * kl

    The law updates once per optimiser step, on the mean over micro-batches and ranks, and every
    rank gets the same weight. It does not update if no batch of the step logged a KL. The callback
    logs `control/kl_target`, `control/kl` and `control/beta`. The state is part of the trainer's
    checkpoint. Several callbacks can control several terms, each under its own names.

    Args:
        law: Control law.
        kl: Name under which the module logs the controlled term.
        weight: Attribute of the module to write. A number becomes a tensor; a buffer keeps its
            address.
    """

    def __init__(self, law: Law, kl: str = "kl", weight: str = "beta") -> None:
        self.kl, self.weight = kl, weight
        self.steps = PerOptimiserStep(law)
        if law.controls_reconstruction and kl == "kl":
            raise UserError(
                f"kl must name the reconstruction for {type(law).__name__}, got 'kl': log it "
                "and build KLControl(law, kl='recon')"
            )
        self.controller = self.steps.controller
        self._optimiser_steps = 0
        # The logged tensor before the batch. Keeping it ensures that its memory is not reused.
        self._logged_before: Tensor | None = None

    @property
    def state_key(self) -> str:
        return self._generate_state_key(kl=self.kl, weight=self.weight)

    def state_dict(self) -> dict[str, Any]:
        return self.controller.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.controller.load_state_dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not hasattr(pl_module, self.weight):
            raise UserError(
                f"{type(pl_module).__name__} must have the attribute {self.weight!r}: set "
                f"self.{self.weight} = 0.0 in its __init__ and multiply the KL by it, or name "
                "another attribute with KLControl(law, weight=...)"
            )
        self.steps.start()
        self._optimiser_steps = trainer.global_step
        self._write_weight(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._logged_before = trainer.callback_metrics.get(self.kl)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A training_step that returned None may have logged no KL.
        was_skipped = pl_module.automatic_optimization and not outputs
        if not was_skipped:
            self._add_logged(trainer.callback_metrics)
        if trainer.global_step == self._optimiser_steps:
            return
        self._optimiser_steps = trainer.global_step
        if not self.steps.has_pending:
            return
        self.steps.update()
        self._write_weight(pl_module)
        signals = self.controller.signals()
        values = {f"control/{self.kl}": signals.measured, f"control/{self.weight}": signals.beta}
        if self.controller.target is not None:
            values[f"control/{self.kl}_target"] = signals.target
        pl_module.log_dict(values, on_step=True, on_epoch=False)

    def _add_logged(self, metrics: Any) -> None:
        """Add the KL that this batch logged, if it logged one."""
        if self.kl not in metrics:
            raise UserError(
                f"training_step must log {self.kl!r}: call self.log({self.kl!r}, kl) there, "
                "with on_step=True"
            )
        logged = metrics[self.kl]
        # If the batch logged nothing, Lightning still returns the tensor of an earlier one.
        if self._logged_before is None or logged.data_ptr() != self._logged_before.data_ptr():
            self.steps.add(logged)

    def _write_weight(self, module: LightningModule) -> None:
        current = getattr(module, self.weight)
        if isinstance(current, Tensor):
            current.fill_(self.controller.beta)
        else:  # the float64 of the state would turn a float32 loss into float64
            weight = torch.as_tensor(
                self.controller.beta, dtype=torch.get_default_dtype(), device=module.device
            )
            setattr(module, self.weight, weight)


class SeededLoader(DataLoader[Any]):
    """Loader of shuffled batches whose order is a function of (seed, epoch), and which can resume.

    Lightning restarts a plain `DataLoader` when it resumes within an epoch, so training does not
    resume with the batches that were left. It saves and restores the position of a loader that has a
    `state_dict`, such as this one or torchdata's `StatefulDataLoader`.

    >>> loader = SeededLoader(torch.arange(6.0), batch_size=2, seed=1)
    >>> batches = iter(loader)
    >>> first, position = next(batches), loader.state_dict()
    >>> resumed = SeededLoader(torch.arange(6.0), batch_size=2, seed=1)
    >>> resumed.load_state_dict(position)
    >>> next(iter(resumed)).equal(next(batches))
    True

    Args:
        dataset: Data set with a length.
        batch_size: Number of examples in a batch.
        seed: Seed of the order.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        **options: Further options of `DataLoader`, such as `num_workers`.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        self._batches = _SeededBatches(dataset, batch_size, seed, drop_last)
        # A separate generator, so that a new epoch draws nothing from torch's.
        options.setdefault("generator", torch.Generator().manual_seed(seed))
        super().__init__(dataset, batch_sampler=self._batches, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            self._batches.position += 1
            yield batch
        self._batches.epoch += 1
        self._batches.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of batches of it that were read."""
        return {"epoch": self._batches.epoch, "position": self._batches.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches that were read."""
        self._batches.epoch, self._batches.position = int(state["epoch"]), int(state["position"])


class _SeededBatches(Sampler[list[int]]):
    """Indices of the batches of an epoch that were not read yet."""

    def __init__(self, dataset: Any, batch_size: int, seed: int, drop_last: bool) -> None:
        self.count, self.batch_size = len(dataset), batch_size
        self.seed, self.drop_last = seed, drop_last
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return (
            self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)
        )

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % (1 << 63))
        order = torch.randperm(self.count, generator=generator).split(self.batch_size)
        for indices in order[self.position : len(self)]:
            yield indices.tolist()
