"""FactorVAE score: accuracy of a majority vote that identifies a shared factor from variances."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import (
    check_at_least,
    check_codes,
    factor_labels,
    to_numpy,
    warn_if_few_examples,
)
from controlvae.metrics.disentanglement._shared_factor import (
    apply_in_chunks,
    draw_by_factor,
    draw_partners,
    draw_repeated,
)


@dataclass(frozen=True)
class FactorVAEScore:
    """Accuracy of the majority vote, and the votes behind it."""

    score: float  # on test votes
    score_learnt: float  # on training votes
    votes: list[list[int]]  # training votes, (latents, factors)
    active_latents: int  # latents whose standard deviation reaches the threshold
    estimator: str


def factor_vae_score(
    codes: Any,
    factors: Any,
    *,
    batch: int = 64,
    learn: int = 10_000,
    test: int = 5_000,
    threshold: float = 0.05,
    seed: int = 0,
) -> FactorVAEScore:
    r"""Compute the FactorVAE score, as disentanglement_lib does.

    .. math:: j^* = \arg\min_j \frac{\mathrm{Var}_{batch}[z_j]}{\mathrm{Var}[z_j]}

    Each vote takes a random factor and a batch of examples that share a value of it. It is cast by
    the latent :math:`j^*` whose variance shrinks most. The classifier assigns to each latent the
    factor of most of its votes; the score is its accuracy (Kim & Mnih, *Disentangling by
    factorising*, 2018).

    Settings are those of Locatello et al. 2019. Their code generates new examples for every batch.
    Here rows of the given table are drawn with replacement, so the other factors vary as they do in
    the table.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        batch: Examples per vote.
        learn: Votes to train the classifier.
        test: Votes to test it.
        threshold: Latents with a smaller standard deviation are skipped. The score is 0 if none
            is left.
        seed: Seed of votes and examples.

    Returns:
        The accuracy on test votes and on training votes, and the votes.

    >>> import numpy as np
    >>> factors = np.indices((10, 10)).reshape(2, -1).T.repeat(20, axis=0)
    >>> factor_vae_score(1.0 * factors, factors, learn=300, test=100).score
    1.0
    """
    check_at_least(2, batch=batch)
    check_at_least(1, learn=learn, test=test)
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    labels = factor_labels(factors, len(values), None, min_factors=2)
    warn_if_few_examples(labels)
    variance = values.var(axis=0, ddof=1)
    active = np.flatnonzero((variance > 0) & (np.sqrt(variance) >= threshold))
    # Training votes and test votes, (2, latents, factors).
    votes = np.zeros((2, values.shape[1], len(labels)), dtype=np.int64)
    if len(active):
        scaled = values[:, active] / np.sqrt(variance[active])

        def voting_latent(column: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
            first = draw_repeated(column, rng, count)[:, None]
            rows = draw_partners(column, np.broadcast_to(first, (count, batch)), rng)
            least_varying = lambda some: active[scaled[some].var(axis=1).argmin(1)]  # noqa: E731
            return apply_in_chunks(least_varying, scaled.shape[1], rows)

        latent, factor = draw_by_factor(labels, voting_latent, learn + test, seed)
        part = (np.arange(learn + test) >= learn).astype(np.int64)
        np.add.at(votes, (part, latent, factor), 1)
    majority = votes[0].argmax(1)
    learnt, tested = votes[:, np.arange(len(majority)), majority].sum(1) / (learn, test)
    return FactorVAEScore(
        score=float(tested),
        score_learnt=float(learnt),
        votes=votes[0].tolist(),
        active_latents=len(active),
        estimator=f"FactorVAE score, {learn:,} votes learnt, {test:,} tested, batches of {batch} "
        f"from {len(values):,} examples, latents with a standard deviation below {threshold:g} "
        "left out",
    )
