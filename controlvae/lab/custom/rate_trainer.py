"""Training step of one user-supplied model that is conditioned on the rate."""

from typing import Any

from torch import Tensor

from controlvae.lab.custom.noise import Noise
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.engines.rate_bins import RateBins
from controlvae.lab.models.rate_conditioning import find_conditioning


class CustomRateTrainer(CustomTrainer):
    """Trainer of a user-supplied model whose examples have set points of their own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bins = RateBins(self.experiment, self.device)
        self.control = self.bins.control  # type: ignore[assignment]  # of all set points
        conditioning = find_conditioning(self.vae.module)
        assert conditioning is not None
        self.conditioning = conditioning

    def step(self, batch: Any, noise: Tensor | Noise) -> Tensor:
        """Take one optimiser step. See `CustomTrainer.step`."""
        with self.conditioning.at(self.bins.set_points, self.bins.repeats):
            found = self.vae.example_losses(batch, noise)
        reconstruction, kl = (self.bins.average(part) for part in found[:2])
        loss, weights = self.bins.weigh(reconstruction, kl)
        self.optimiser.backward_and_step(loss + found.other)
        self.update_average()
        return self.bins.make_row(reconstruction, kl, found.kl_per_latent.mean(0), weights)
