"""Interface of objectives: what they read of a training step, and the loss terms they return.

All terms are in nats per example. Objectives never weight them; an engine does that with the
controller.
Tensors end in (batch, latents), and any number of models may come before that.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.lab.objectives.likelihood import Likelihood
from controlvae.lab.optimiser import Adam
from controlvae.laws import Law
from controlvae.laws.backend import FLOATS, Backend, Value


class Divergence(NamedTuple):
    """KL(q(z|x) || p(z)) averaged over the batch: its sum over latents, and each latent's."""

    kl: Tensor
    per_latent: Tensor  # (..., latents)


def compute_divergence(posterior: Posterior) -> Divergence:
    """Return the KL divergence from the prior, averaged over the batch."""
    kl = gaussian_kl(posterior)
    return Divergence(kl.sum(-1).mean(-1), kl.mean(-2))


class CriticSpec(NamedTuple):
    """Critic network to train next to the model: hidden widths and optimiser."""

    widths: tuple[int, ...]
    optimiser: Adam


class CriticOutput(NamedTuple):
    """Critic results for one batch."""

    logits: Tensor  # for z, (..., batch, 2), with gradients to z
    accuracy: Tensor  # share of rows it classifies correctly


class ObjectiveInputs(NamedTuple):
    """Results of one training step that objectives read. Each objective uses some of them."""

    divergence: Divergence
    posterior: Posterior | None = None
    z: Tensor | None = None  # sample of the posterior, (..., batch, latents)
    examples: int = 0  # size of the training set
    kl_weights: Tensor | None = None  # values of `Objective.kl_weights_at`, (latents,)
    critic: CriticOutput | None = None  # for an objective with a `critic_spec`
    model: Any = None  # in the eager engine only
    x: Any = None  # the batch, in the eager engine only


class Terms(NamedTuple):
    """Loss terms averaged over the batch, one number per model.

    The loss is reconstruction + uncontrolled + weight x controlled.
    """

    divergence: Divergence
    controlled: Tensor  # multiplied by the weight, and measured by the controller
    uncontrolled: Tensor | float = 0.0  # added to the loss with weight 1
    extras: tuple[Tensor, ...] = ()  # values of `Objective.extra_columns`, see `Objective.logged`


class Objective(ABC):
    """Settings and loss terms of one objective.

    A concrete objective is a frozen dataclass. Class attributes and `critic_spec` tell an engine
    what to provide.
    """

    # Log column of the controlled term: "kl" or "tc".
    controlled_quantity: ClassVar[str] = "kl"
    # Log columns in addition to those of every objective.
    extra_columns: ClassVar[tuple[str, ...]] = ()
    # Independent batches per step.
    batches: ClassVar[int] = 1
    # Noise tensors per step, each (batch, latents).
    noise_draws: ClassVar[int] = 1
    # Compile `terms` in the stacked engine. Worthwhile for more than a few operations.
    compile_terms: ClassVar[bool] = False
    # Every term is a mean over examples. Otherwise terms compare the examples of a batch, and each
    # process of a training on several gets the posteriors of all.
    is_mean_over_examples: ClassVar[bool] = True
    # Build the model with a head that predicts the words of a response in any order.
    needs_bag_of_words: ClassVar[bool] = False

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """Likelihood p(x|z) of the reconstruction term."""

    @abstractmethod
    def terms(self, inputs: ObjectiveInputs) -> Terms:
        """Return the loss terms of one step."""

    def logged(self, inputs: ObjectiveInputs, terms: Terms) -> tuple[Tensor, ...]:
        """Return the values of `extra_columns` for the log, without a gradient.

        Engines call it next to `terms`, never inside the same compiled function: what is logged
        must not change how the loss is rounded.
        """
        return terms.extras

    def critic_spec(self) -> CriticSpec | None:
        """Return the critic to train next to the model, or None if there is none."""
        return None

    def kl_weights_at(self, latents: int, step: Value, xp: Backend = FLOATS) -> list[Value]:
        """Return one KL weight per latent at a step, or an empty list if all of them are 1.

        Args:
            latents: Number of latents.
            step: Step number, counted from one: a float or a tensor.
            xp: Operations for that kind of `step`.
        """
        return []

    def needs_whole_batch(self) -> bool:
        """Return whether the terms of a batch are not the means of the terms of its parts."""
        return not self.is_mean_over_examples

    def has_scheduled_kl_weights(self) -> bool:
        """Return whether `kl_weights_at` changes from step to step."""
        return False

    def check_fit(self, data: Literal["image", "text", "dialog"], law: Law, latents: int) -> None:
        """Raise ValueError if the objective does not fit the rest of an experiment.

        Args:
            data: Kind of the data set.
            law: Law of the controlled term's weight.
            latents: Number of latents of the model.
        """
        return
