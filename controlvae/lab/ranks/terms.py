"""Loss terms of the whole batch from those of each rank's rows."""

from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.objectives import Divergence, Terms
from controlvae.lab.ranks.share import BatchShare


def average_terms(reconstruction: Tensor, terms: Terms, share: BatchShare) -> tuple[Tensor, Terms]:
    """Return reconstruction and terms averaged over the rows of all ranks.

    Args:
        reconstruction: Mean over the rows of this rank.
        terms: Means over the rows of this rank.
        share: Share of this rank in the batch.
    """
    if share.is_whole:
        return reconstruction, terms
    uncontrolled = terms.uncontrolled
    has_other = isinstance(uncontrolled, Tensor)
    values = [reconstruction, *terms.divergence, terms.controlled, *terms.extras]
    mean, kl, per_latent, controlled, *rest = share.mean(
        [*values, uncontrolled] if isinstance(uncontrolled, Tensor) else values
    )
    other = rest.pop() if has_other else uncontrolled
    return mean, Terms(Divergence(kl, per_latent), controlled, other, tuple(rest))


def gather_posterior(posterior: Posterior, share: BatchShare) -> Posterior:
    """Return the posterior of the whole batch. Own rows keep their gradient.

    Args:
        posterior: Posterior of the rows of this rank.
        share: Share of this rank in the batch.
    """
    mean, log_variance, prior, context = posterior
    return Posterior(
        share.gather(mean),
        share.gather(log_variance),
        None if prior is None else gather_posterior(prior, share),
        context,
    )
