"""Training step of one user-supplied model."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.lab.config import Experiment
from controlvae.lab.custom.adapter import CustomVAE, Losses
from controlvae.lab.custom.batches import cast_batch, map_tensors
from controlvae.lab.custom.compilation import LossFunction
from controlvae.lab.custom.feeds import ArrayFeed, Feed, StreamFeed
from controlvae.lab.custom.half import computes_in_half
from controlvae.lab.custom.noise import Noise, StepSeeds
from controlvae.lab.custom.optimiser import TorchOptimiser
from controlvae.lab.engines.base import as_control_state, strip_prefix
from controlvae.lab.engines.measurements import make_row
from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.lab.engines.rng import noise_key, normal_noise
from controlvae.lab.objectives import Divergence, ObjectiveInputs
from controlvae.lab.ranks.batch_norm import restore_batch_norm
from controlvae.lab.ranks.gradients import LossModule, average_gradients
from controlvae.lab.ranks.row_noise import RowNoise
from controlvae.lab.ranks.sharding import is_sharded, shard_like, whole_tensor
from controlvae.lab.ranks.share import BatchShare


class CustomTrainer:
    """One user-supplied model with its optimiser, controller and batches.

    Args:
        experiment: Experiment to train.
        vae: The model, in training mode on its device.
        feed: Batches of the run.
        optimiser: Optimiser of the model.
        python_randomness: Seed Python's and NumPy's generators for each step too.
        loss_function: Computes the loss terms. The default is the model's own, uncompiled.
        share: Rows of each batch that this process computes. None computes all of them.
    """

    def __init__(
        self,
        experiment: Experiment,
        vae: CustomVAE,
        feed: Feed,
        optimiser: NetworkOptimiser | TorchOptimiser,
        python_randomness: bool = False,
        loss_function: LossFunction | None = None,
        share: BatchShare | None = None,
    ) -> None:
        self.experiment, self.vae, self.feed, self.optimiser = experiment, vae, feed, optimiser
        self.share = share or BatchShare()
        self.row_noise = None if self.share.is_whole else RowNoise(self.share)
        self.loss_function = loss_function or LossFunction(vae)
        self.losses: Callable[..., Losses] = self.loss_function
        self.device = next(vae.module.parameters()).device
        self.control = Controller(
            experiment.control,
            sync_ranks=False,
            delayed=experiment.training.delayed,
            monitor=False,
        )
        self.seeds = StepSeeds(experiment.training.seed, self.device, python_randomness)
        self.key = torch.tensor(noise_key(experiment.training.seed), device=self.device)
        self.draws_latents = vae.form == "encode" and not isinstance(feed, StreamFeed)
        self.channels_last = uses_channels_last(vae.module, self.device)
        decay = experiment.training.ema_weights
        self.average = _clone_state(vae.module) if decay else {}
        self.gathers_by_index = isinstance(feed, ArrayFeed) and feed.is_resident
        self.chunk_noise, self._first = torch.empty(0), 0

    def connect_ranks(self, wrapped: LossModule | None = None, unused: bool = False) -> None:
        """Average gradients over ranks from now on. Every rank calls this.

        Args:
            wrapped: Module that FSDP2 has sharded. None averages gradients of whole models.
            unused: Some parameters may have no gradient in a step.
        """
        if wrapped is not None:
            wrapped.function = self.compute_losses
            self.losses = wrapped
        else:
            self.losses = average_gradients(self.vae.module, self.compute_losses, unused=unused)

    def disconnect_ranks(self) -> None:
        """Remove the hooks that average gradients, and give the model its batch norms back."""
        self.losses = self.loss_function
        restore_batch_norm(self.vae.module)

    def compute_losses(self, batch: Any, noise: Tensor | Noise) -> Losses:
        """Return the losses averaged over the rows of all ranks.

        Args:
            batch: Rows of this rank.
            noise: Noise of z of these rows, or a source of noise.
        """
        with self.row_noise or nullcontext():
            own = self.loss_function(batch, noise)
        return average_losses(own, self.share)

    def start(self, first: int, steps: int) -> None:
        """Prepare the batches and the noise of steps `first` to `first + steps - 1`."""
        self.feed.start(first, steps)
        self._first = first
        if self.draws_latents:
            numbers = torch.arange(first, first + steps, device=self.device)
            shape = (self.experiment.training.batch, self.vae.latents)
            self.chunk_noise = normal_noise(self.key, numbers, shape, self.share.rows)

    def load(self, number: int) -> tuple[Any, Tensor | Noise]:
        """Do the host's work before a step. Returns its batch and its noise."""
        batch = self.convert(self.feed.batch(number))
        self.prepare(number)
        if self.draws_latents:
            return batch, self.chunk_noise[number - self._first]
        return batch, Noise(self.device, self.vae.dtype, self.row_noise)

    def prepare(self, number: int) -> None:
        """Set the learning rate and the generators for a step."""
        self.optimiser.set_rate(number)
        self.seeds.start(number)

    def convert(self, batch: Any) -> Any:
        """Return a batch in the model's type and memory layout."""
        batch = cast_batch(batch, self.vae.dtype)
        return map_tensors(batch, _as_channels_last) if self.channels_last else batch

    def step(self, batch: Any, noise: Tensor | Noise) -> Tensor:
        """Take one optimiser step.

        Args:
            batch: Batch on the device, in the model's type.
            noise: Noise of z, (batch, latents), or a source of noise.

        Returns:
            The step's row of measurements, (columns,).
        """
        losses = self.losses(batch, noise)
        divergence = Divergence(losses.kl, losses.kl_per_latent)
        terms = self.experiment.objective.terms(ObjectiveInputs(divergence))
        by_reconstruction = self.experiment.control.controls_reconstruction
        measured = (losses.reconstruction if by_reconstruction else terms.controlled).detach()
        # In host memory a Python number is the cheaper input; on a device it would force a wait.
        on_host = measured.device.type == "cpu"
        beta: float | Tensor = (
            self.control.step(measured.item()) if on_host else self.control.step(measured)
        )
        loss = losses.reconstruction + losses.other + beta * terms.controlled
        # Gradients are averaged over ranks, and each rank has only the part of its rows.
        self.optimiser.backward_and_step(loss if self.share.is_whole else loss * self.share.size)
        self.update_average()
        weight = beta if self.control.delayed else self.control.state.beta
        return make_row(self.control, losses.reconstruction, terms, weight, self.device)

    @torch.no_grad()
    def computes_in_half(self, number: int) -> bool:
        """Return whether the losses of a step's batch are computed in float16 anywhere."""
        if isinstance(self.feed, StreamFeed):  # another batch would be missing in training
            return False
        self.start(number, 1)
        batch, noise = self.load(number)
        return computes_in_half(lambda: self.vae.losses(batch, noise))

    @torch.no_grad()
    def update_average(self) -> None:
        """Move the average of the weights towards the present ones, if one is kept."""
        if not self.average:
            return
        kept = 1 - self.experiment.training.ema_weights
        current = self.vae.module.state_dict()
        floats = [name for name, value in self.average.items() if value.is_floating_point()]
        # Shards and the whole tensors of buffers cannot be in one call.
        for kind in (False, True):
            names = [name for name in floats if is_sharded(current[name]) is kind]
            if names:
                torch._foreach_lerp_(
                    [self.average[name] for name in names], [current[name] for name in names], kept
                )
        for name in self.average.keys() - set(floats):
            self.average[name].copy_(current[name])

    def snapshot(self) -> dict[str, Tensor]:
        """Return all tensors that change in training, on the host, without shared memory."""
        tensors = dict(self.optimiser.snapshot())
        tensors |= {f"ema.{name}": value for name, value in self.average.items()}
        tensors |= {f"feed.{name}": value for name, value in self.feed.state().items()}
        for name, value in self.control.state_dict().items():
            tensors[f"control.{name}"] = torch.as_tensor(value, dtype=torch.float64)
        return {
            name: whole_tensor(value.detach()).cpu().contiguous().clone()
            for name, value in tensors.items()
        }

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue from a snapshot.

        Args:
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        self.optimiser.restore(tensors)
        for name, value in self.average.items():
            value.copy_(shard_like(tensors[f"ema.{name}"], value))
        self.control.load_state_dict(as_control_state(strip_prefix(tensors, "control.")))
        self.feed.restore(step, strip_prefix(tensors, "feed."))


def average_losses(own: Losses, share: BatchShare) -> Losses:
    """Return losses averaged over the rows of all ranks, with the gradient of this rank's rows.

    Args:
        own: Losses averaged over the rows of this rank.
        share: Share of this rank in the batch.
    """
    other = own.other
    values = [own.reconstruction, own.kl, own.kl_per_latent]
    if isinstance(other, Tensor):
        values.append(other)
    reconstruction, kl, per_latent, *rest = share.mean(values)
    return Losses(reconstruction, kl, per_latent, rest[0] if rest else other)


def _clone_state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def uses_channels_last(module: torch.nn.Module, device: torch.device) -> bool:
    """Return whether images go through a model in channels-last layout: convolutions on a GPU."""
    kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    return device.type == "cuda" and any(isinstance(layer, kinds) for layer in module.modules())


def _as_channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() != 4 or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
