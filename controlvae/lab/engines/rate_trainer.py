"""Training step of one rate-conditioned image model."""

import torch
from torch import Tensor

from controlvae.distributions import gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import Width
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.engines.rate_bins import RateBins
from controlvae.lab.engines.trainer import ModelTrainer
from controlvae.lab.models.rate_conditioning import find_conditioning
from controlvae.lab.ranks.share import BatchShare


class RateTrainer(ModelTrainer):
    """Trainer of a model whose examples have set points of their own. See `ModelTrainer`."""

    def __init__(
        self,
        experiment: Experiment,
        examples: Dataset,
        device: torch.device,
        share: BatchShare | None = None,
    ) -> None:
        super().__init__(experiment, examples, device, share)
        if not self.share.is_whole:
            raise UserError("a rate-conditioned model is trained by one process: leave out devices")
        self.bins = RateBins(experiment, self.device)
        self.control = self.bins.control  # type: ignore[assignment]  # of all set points
        conditioning = find_conditioning(self.model)
        assert conditioning is not None
        self.conditioning = conditioning

    def step(self, width: Width, indices: Tensor, noise: Tensor) -> Tensor:
        """Take one optimiser step. See `ModelTrainer.step`."""
        x = self.load_batch(width, indices[0])
        with self.conditioning.at(self.bins.set_points, self.bins.repeats):
            posterior = self.encode(x)
            losses = self.reconstruct(posterior.sample(noise[0]), x, posterior)
        per_latent = gaussian_kl(posterior)
        reconstruction = self.bins.average(losses)
        kl = self.bins.average(per_latent.sum(-1))
        loss, weights = self.bins.weigh(reconstruction, kl)
        self.optimisers[""].backward_and_step(loss)
        return self.bins.make_row(reconstruction, kl, per_latent.mean(0), weights)
