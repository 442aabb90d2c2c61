"""FactorVAE objective: total correlation KL(q(z) || Π q(z_j)) estimated by a critic.

The critic classifies latents of an example (class 0) against latents that are shuffled across a
second, independent batch (class 1).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from controlvae.lab.objectives.base import CriticSpec, Objective, ObjectiveInputs, Terms
from controlvae.lab.objectives.likelihood import Likelihood, check_likelihood
from controlvae.lab.optimiser import Adam
from controlvae.laws import Law


@dataclass(frozen=True)
class TotalCorrelation(Objective):
    """Reconstruction + KL + weight x total correlation (FactorVAE, Kim & Mnih 2018).

    Attributes:
        likelihood: Likelihood of the reconstruction term.
        critic: Widths of the critic's hidden layers.
        critic_optimiser: Optimiser of the critic.
    """

    likelihood: Likelihood = "bernoulli"
    critic: tuple[int, ...] = (1000, 1000, 1000, 1000, 1000)
    critic_optimiser: Adam = field(default_factory=lambda: Adam(1e-4, 0.5, 0.9))

    controlled_quantity: ClassVar[str] = "tc"
    extra_columns: ClassVar[tuple[str, ...]] = ("tc", "critic_accuracy")
    batches: ClassVar[int] = 2
    # The noise of z in both batches, and noise that is sorted into a shuffling.
    noise_draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_likelihood(self.likelihood)
        if not self.critic:
            raise ValueError("critic must have at least one hidden layer, got ()")
        if not all(width > 0 for width in self.critic):
            raise ValueError(f"critic must be positive widths, got {self.critic}")

    def terms(self, inputs: ObjectiveInputs) -> Terms:
        """Return the critic's estimate as the controlled term and the KL as uncontrolled."""
        assert inputs.critic is not None
        correlation = density_ratio(inputs.critic.logits)
        return Terms(
            inputs.divergence,
            controlled=correlation,
            uncontrolled=inputs.divergence.kl,
            extras=(correlation.detach(), inputs.critic.accuracy),
        )

    def critic_spec(self) -> CriticSpec:
        """Return the widths and the optimiser of the critic."""
        return CriticSpec(self.critic, self.critic_optimiser)

    def check_fit(self, data: Literal["image", "text", "dialog"], law: Law, latents: int) -> None:
        """Raise ValueError for text and dialogs, which no engine trains with a critic."""
        if data != "image":
            raise ValueError(f"TotalCorrelation is for images, got {data} data")


def density_ratio(logits: Tensor) -> Tensor:
    """Return the critic's estimate: the mean of log q(z) - log Π q(z_j), its logits' difference.

    The estimate is not a bound. It can be negative while the critic lags behind the model, though
    the true value never is.
    """
    return (logits[..., 0] - logits[..., 1]).mean(-1)


def shuffle_latents(z: Tensor, order: Tensor) -> Tensor:
    """Permute each latent across the batch, which draws from Π q(z_j). Both (batch, latents)."""
    return z.gather(-2, order)


def critic_loss(joint: Tensor, independent: Tensor) -> Tensor:
    """Return the cross-entropy of classifying joint (0) and shuffled (1) rows, weighted equally."""
    log_likelihood = F.logsigmoid(joint[..., 0] - joint[..., 1]).mean(-1)
    return -0.5 * (
        log_likelihood + F.logsigmoid(independent[..., 1] - independent[..., 0]).mean(-1)
    )


def critic_loss_gradient(joint: Tensor, independent: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `critic_loss` with respect to both sets of logits."""
    joint_error = torch.sigmoid(joint[..., 1] - joint[..., 0]) * (-0.5 / joint.shape[-2])
    independent_error = torch.sigmoid(independent[..., 0] - independent[..., 1]) * (
        0.5 / independent.shape[-2]
    )
    return (
        torch.stack([joint_error, -joint_error], -1),
        torch.stack([independent_error, -independent_error], -1),
    )


def critic_accuracy(joint: Tensor, independent: Tensor) -> Tensor:
    """Return the share of rows classified correctly; 0.5 means that nothing was detected."""
    correct = (joint[..., 0] > joint[..., 1]).float().mean(-1)
    return 0.5 * (correct + (independent[..., 1] > independent[..., 0]).float().mean(-1))


def min_total_correlation(accuracy: float) -> float:
    """Return a lower bound on the total correlation, in nats, from the critic's accuracy.

    A classifier with accuracy a on balanced classes proves a total variation of at least 2a - 1,
    and by Pinsker's inequality a divergence of at least twice its square.

    >>> round(min_total_correlation(0.68), 3)
    0.259
    """
    return 2 * max(0.0, 2 * accuracy - 1) ** 2
