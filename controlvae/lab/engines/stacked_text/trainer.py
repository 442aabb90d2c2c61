"""Training step of many text or dialog models at once, stacked by `torch.func.vmap`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from controlvae.controller import Controller
from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import BucketOrder, Width
from controlvae.lab.data.text.dialogs import DialogBatch, DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.measurements import make_rows
from controlvae.lab.engines.rng import (
    draw_batch_indices,
    make_batch_orders,
    noise_key,
    noise_shape,
    normal_noise,
)
from controlvae.lab.engines.stacked_text.masks import MaskReader, StackedMasks
from controlvae.lab.engines.stacked_text.parameters import StackedOptimiser, stack_models
from controlvae.lab.engines.stacked_text.recurrence import make_stackable
from controlvae.lab.engines.text_trainer import SentenceTrainer, SequenceTrainer
from controlvae.lab.models import build
from controlvae.lab.objectives import Terms


class StackedTrainer:
    """Models of one shape, each with its own weights, law, batches and noise.

    The losses are those of the plain trainer, so both engines have one definition of them.

    Args:
        experiments: Experiments that differ in nothing but seed and law, with shared widths.
        examples: Sentences or dialogs on the device.
        device: Device to train on.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        examples: SentenceDataset | DialogDataset,
        device: torch.device,
    ) -> None:
        first = experiments[0]
        models = [build(experiment, examples) for experiment in experiments]
        self.optimiser = StackedOptimiser(stack_models(models), first.adam, device)
        is_text = isinstance(examples, SentenceDataset)
        self.template: SequenceTrainer = (SentenceTrainer if is_text else SequenceTrainer)(
            first, examples, device
        )
        self.device = self.template.device
        self.masks = self._make_masks([experiment.training.seed for experiment in experiments])
        self.losses = _Losses(self.template, self.masks)
        laws = [experiment.control for experiment in experiments]
        control = Controller(laws, sync_ranks=False, delayed=first.training.delayed, monitor=False)
        self.control = control.to(device)
        self.bounds = torch.tensor(
            [law.bounds for law in laws], dtype=torch.float64, device=device
        ).unbind(1)
        self.by_reconstruction = torch.tensor(
            [law.controls_reconstruction for law in laws], device=device
        )
        self.orders = [make_batch_orders(experiment, examples) for experiment in experiments]
        keys = [noise_key(experiment.training.seed) for experiment in experiments]
        self.keys = torch.tensor(keys, device=device)
        self.noise_shape = noise_shape(first)

    def _make_masks(self, seeds: Sequence[int]) -> StackedMasks | None:
        if not isinstance(self.template, SentenceTrainer) or self.template.masks is None:
            return None
        one, count = self.template.masks, self.template.count_mask_values
        return StackedMasks(one.keep, seeds, count, self.device, one.dtype)

    def draw_randomness(self, first: int, steps: int) -> tuple[Tensor, Tensor]:
        """Return batch indices and noise of consecutive steps.

        Args:
            first: First step, counted from zero.
            steps: Number of steps.

        Returns:
            Indices, (steps, models, batches, batch), and noise, (steps, models, draws, batch,
            latents).
        """
        indices = [draw_batch_indices(orders, first, steps) for orders in self.orders]
        numbers = torch.arange(first, first + steps, device=self.device)
        noise = normal_noise(self.keys[None], numbers[:, None], self.noise_shape)
        return torch.stack(indices, 1).to(self.device), noise

    def prepare(self, number: int) -> Width:
        """Do the host's work before a step. Returns the width of its batch."""
        self.optimiser.set_rate(number)
        self.template.set_kl_weights(number)
        order = self.orders[0][0]
        assert isinstance(order, BucketOrder)
        width = order.width(number)
        if self.masks is not None:
            self.masks.draw(number, width)
        return width

    def step(self, width: Width, indices: Tensor, noise: Tensor) -> Tensor:
        """Take one optimiser step with every model.

        Args:
            width: Width of all batches, from `prepare`.
            indices: Examples of each batch, (models, batches, batch), on the device.
            noise: Noise of each draw, (models, draws, batch, latents), on the device.

        Returns:
            Measurements, (models, columns).
        """
        models = len(indices)
        x = _split_models(self.template.load_batch(width, indices[:, 0].flatten()), models)
        masks = noise.new_empty(models, 0) if self.masks is None else self.masks.values(width)
        reconstruction, terms = vmap(self._compute_losses)(
            self.optimiser.parameters, x, indices, noise, masks
        )
        measured = torch.where(self.by_reconstruction, reconstruction, terms.controlled).detach()
        beta = self.control.step(measured)
        loss = reconstruction + terms.uncontrolled + beta * terms.controlled
        # Each model's loss depends on its own weights alone, so their gradients do not mix.
        self.optimiser.backward_and_step(loss.sum())
        weight = beta if self.control.delayed else self.control.state.beta
        signals = self.control.signals()
        return make_rows(
            signals, self.bounds, reconstruction, terms.divergence, weight, terms.extras
        )

    def _compute_losses(self, parameters: dict[str, Tensor], *inputs: Any) -> tuple[Tensor, Terms]:
        """Return reconstruction and terms of one model with these parameters."""
        losses: tuple[Tensor, Terms] = functional_call(self.losses, parameters, inputs)
        return losses


class _Losses(nn.Module):
    """Losses of one model as a module, whose parameters `functional_call` can replace."""

    def __init__(self, trainer: SequenceTrainer, masks: StackedMasks | None) -> None:
        super().__init__()
        make_stackable(trainer.model)
        self.model, self._trainer, self._masks = trainer.model, trainer, masks

    def forward(
        self, x: Any, indices: Tensor, noise: Tensor, masks: Tensor
    ) -> tuple[Tensor, Terms]:
        """Return the reconstruction and the terms of a batch.

        Args:
            x: Tokens, (batch, T), or the tensors of a `DialogBatch`.
            indices: Examples of each batch, (batches, batch).
            noise: Noise of each draw, (draws, batch, latents).
            masks: Values of the dropout masks, (values,).
        """
        if isinstance(self._trainer, SentenceTrainer):
            # Without a function, attention is one fused kernel, for which vmap has no rule.
            keep = 1.0 if self._masks is None else self._masks.keep
            self._trainer.dropout = MaskReader(masks, keep)
        batch = DialogBatch(**x) if isinstance(x, dict) else x
        reconstruction, terms, _ = self._trainer.compute_batch_losses(batch, indices, noise)
        if not isinstance(terms.uncontrolled, Tensor):  # vmap returns tensors alone
            terms = terms._replace(uncontrolled=torch.full_like(reconstruction, terms.uncontrolled))
        return reconstruction, terms


def _split_models(x: Tensor | DialogBatch, models: int) -> Any:
    """Return a batch of all models' rows as tensors with a first axis of models."""
    if isinstance(x, DialogBatch):
        return {name: value.unflatten(0, (models, -1)) for name, value in vars(x).items()}
    return x.unflatten(0, (models, -1))
