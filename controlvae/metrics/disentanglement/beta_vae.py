"""β-VAE score: accuracy of a linear classifier that identifies a shared factor from codes."""

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
from controlvae.metrics.disentanglement._logistic_regression import logistic_regression
from controlvae.metrics.disentanglement._shared_factor import (
    apply_in_chunks,
    draw_by_factor,
    draw_partners,
    draw_repeated,
)


@dataclass(frozen=True)
class BetaVAEScore:
    """Accuracy of the linear classifier."""

    score: float  # on test points
    score_learnt: float  # on training points
    estimator: str


def beta_vae_score(
    codes: Any,
    factors: Any,
    *,
    batch: int = 64,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
) -> BetaVAEScore:
    r"""Compute the β-VAE score, as disentanglement_lib does.

    .. math:: \hat y = \arg\max_k \Big(w_k^\top \frac1B \sum_b |z_b - z'_b| + c_k\Big)

    The two examples of each pair share their value of a random factor. The score is how often the
    linear classifier names that factor (Higgins et al., *β-VAE: Learning basic visual concepts with
    a constrained variational framework*, 2017).

    The classifier is scikit-learn's LogisticRegression with its present defaults, solved to its
    optimum; disentanglement_lib used those of 2018. Other settings are those of Locatello et al.
    2019. Pairs are rows of the given table, drawn with replacement. Scores near 1 are common: the
    task does not require a disentangled representation. The penalty of the classifier is fixed, so
    codes at a hundredth of the usual scale score well below 1.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        batch: Pairs per point.
        learn: Training points.
        test: Test points.
        seed: Seed of points and examples.

    Returns:
        The accuracy on test points and on training points.

    >>> import numpy as np
    >>> factors = np.indices((10, 10)).reshape(2, -1).T.repeat(20, axis=0)
    >>> beta_vae_score(1.0 * factors, factors, learn=300, test=100).score
    1.0
    """
    check_at_least(1, batch=batch, learn=learn, test=test)
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    labels = factor_labels(factors, len(values), None, min_factors=2)
    warn_if_few_examples(labels)

    def mean_difference(column: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
        first = draw_repeated(column, rng, count * batch).reshape(count, batch)
        second = draw_partners(column, first, rng)
        difference = lambda a, b: np.abs(values[a] - values[b]).mean(1)  # noqa: E731
        return apply_in_chunks(difference, values.shape[1], first, second)

    points, factor = draw_by_factor(labels, mean_difference, learn + test, seed)
    weight, offset = logistic_regression(points[:learn], factor[:learn], len(labels))
    right = (points @ weight + offset).argmax(1) == factor
    return BetaVAEScore(
        score=float(right[learn:].mean()),
        score_learnt=float(right[:learn].mean()),
        estimator=f"β-VAE score, {learn:,} points learnt, {test:,} tested, {batch} pairs each from "
        f"{len(values):,} examples",
    )
