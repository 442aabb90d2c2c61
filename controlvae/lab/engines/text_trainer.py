"""Training step of one text or dialog model, whose batches differ in width."""

from typing import Any

import torch
from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import BucketOrder, Width
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.dropout import DropoutMasks
from controlvae.lab.engines.trainer import ModelTrainer
from controlvae.lab.models import TextVAE
from controlvae.lab.models.reconstruction import token_nll
from controlvae.lab.models.transformer import DropoutFunction
from controlvae.lab.ranks.share import BatchShare


class SequenceTrainer(ModelTrainer):
    """Trainer for sentences or dialogs. A batch holds rows of similar length."""

    def prepare(self, number: int) -> Width:
        """Do the host's work before a step. Returns the width of its batch."""
        super().prepare(number)
        order = self.orders[0]
        assert isinstance(order, BucketOrder)
        return order.width(number)

    def load_batch(self, width: Width, indices: Tensor) -> Any:
        """Return the examples at `indices`, padded to `width`."""
        assert isinstance(self.examples, SentenceDataset | DialogDataset)
        return self.examples.batch(indices, width)  # type: ignore[arg-type]


class SentenceTrainer(SequenceTrainer):
    """Trainer for sentences, with dropout."""

    model: TextVAE

    def __init__(
        self,
        experiment: Experiment,
        examples: Dataset,
        device: torch.device,
        share: BatchShare | None = None,
    ) -> None:
        super().__init__(experiment, examples, device, share)
        rate, training = self.model.dropout, experiment.training
        in_bf16 = device.type == "cuda" and training.precision == "bf16"
        dtype = torch.bfloat16 if in_bf16 else torch.float32
        self.masks = (
            DropoutMasks(rate, training.seed, self.count_mask_values, device, dtype, self.share)
            if rate
            else None
        )
        self.dropout: DropoutFunction | None = self.masks

    def prepare(self, number: int) -> Width:
        """Do the host's work before a step, including its dropout masks."""
        width = super().prepare(number)
        if self.masks is not None:
            self.masks.draw(number, width)
        return width

    def encode(self, x: Tensor) -> Posterior:
        """Return the posterior of a batch, with dropout."""
        return self.model.encode(x, self.dropout)

    def reconstruct(self, z: Tensor, x: Tensor, posterior: Posterior) -> Tensor:
        """Return the reconstruction loss per example, with dropout. See `ModelTrainer`.

        Args:
            z: Sample of the posterior, (batch, latents).
            x: Batch of the step.
            posterior: Posterior of the batch.
        """
        return token_nll(self.model.decode(z, x, self.dropout), x)

    @torch.no_grad()
    def count_mask_values(self, width: Width) -> int:
        """Count the values that dropout touches in a step, with a batch of padding."""
        sizes = []

        def count(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        shape = (self.experiment.training.batch, width)
        padding = torch.zeros(shape, dtype=torch.int64, device=self.device)  # type: ignore[arg-type]
        self.model.decode(self.model.encode(padding, count).mean, padding, count)
        return sum(sizes)
