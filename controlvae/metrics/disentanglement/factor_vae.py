"""FactorVAE's and β-VAE's scores: can a simple rule tell from the codes which factor some examples have in common?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from controlvae.metrics._validation import at_least, check_enough, classes, code_table, host_array

_NUMBERS = 1 << 23  # codes looked up at a time: 64 MiB


@dataclass(frozen=True)
class FactorVAEScore:
    """Accuracy of the majority vote, and the votes."""

    score: float  # on votes that were not counted
    score_learnt: float  # on those that were
    votes: list[list[int]]  # counted ones, (latents, factors)
    active_latents: int  # those that were not left out
    estimator: str


@dataclass(frozen=True)
class BetaVAEScore:
    """Accuracy of a linear classifier."""

    score: float  # on points that were not learnt from
    score_learnt: float  # on those that were
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
    """FactorVAE's score, as disentanglement_lib computes it.

    Kim & Mnih, *Disentangling by factorising*, 2018. A vote takes a random factor and a batch of examples that share a
    random example's value of it, and goes from the latent whose variance in the batch is the smallest share of its
    variance over all examples. The rule says for each latent the factor most of its votes came from; the
    score is how often that is right. Settings are those of Locatello et al. 2019, in whose code every batch is made
    anew from the generator of the data; here rows of the given table are drawn, with replacement, so the other
    factors vary as they do in the table.

    Args:
        codes: (examples, latents).
        factors: integer classes, (examples, factors), two factors or more.
        batch: examples per vote.
        learn: votes counted for the rule.
        test: votes it is tested on.
        threshold: latents whose standard deviation over all examples is less are left out; without any, the score is 0.
        seed: of the choice of votes and examples.
    """
    at_least(2, batch=batch)
    at_least(1, learn=learn, test=test)
    if not threshold >= 0:
        raise ValueError(f"threshold must be 0 or more, got {threshold}")
    values = code_table("codes", host_array(codes)).astype(np.float64)
    columns = classes(factors, len(values), None, least=2)
    check_enough(columns)
    spread = values.var(axis=0, ddof=1)
    active = np.flatnonzero((spread > 0) & (np.sqrt(spread) >= threshold))
    votes = np.zeros(
        (2, values.shape[1], len(columns)), dtype=np.int64
    )  # learnt and tested: (latents, factors)
    if len(active):
        share = values[:, active] / np.sqrt(spread[active])

        def latent(labels: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
            first = np.broadcast_to(_repeated(labels, rng, count)[:, None], (count, batch))
            rows = _partners(labels, first, rng)
            return _few_at_a_time(
                lambda some: active[share[some].var(axis=1).argmin(1)], share.shape[1], rows
            )

        drawn, factor = _draw(columns, latent, learn + test, seed)
        part = (np.arange(learn + test) >= learn).astype(np.int64)
        np.add.at(votes, (part, drawn, factor), 1)
    rule = votes[0].argmax(1)
    learnt, tested = votes[:, np.arange(len(rule)), rule].sum(1) / (learn, test)
    return FactorVAEScore(
        score=float(tested),
        score_learnt=float(learnt),
        votes=votes[0].tolist(),
        active_latents=len(active),
        estimator=f"FactorVAE score, {learn:,} votes learnt, {test:,} tested, batches of {batch} from "
        f"{len(values):,} examples, latents with a standard deviation below {threshold:g} left out",
    )


def beta_vae_score(
    codes: Any,
    factors: Any,
    *,
    batch: int = 64,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
) -> BetaVAEScore:
    """β-VAE's score, as disentanglement_lib computes it.

    Higgins et al., *β-VAE: Learning basic visual concepts with a constrained variational framework*, 2017. A point is
    the mean of |z - z'| over a batch of pairs whose examples share their value of a random factor; the score is how
    often a linear classifier says from the point which factor that was. The classifier is scikit-learn's
    LogisticRegression with its present defaults (disentanglement_lib took those of 2018), solved to its optimum.
    Settings are those of Locatello et al. 2019; pairs are rows of the given table, drawn with replacement. Scores near
    1 are common: a representation need not be disentangled for a linear classifier to do this. The classifier's penalty
    is of fixed size, so codes in small units score less: at a hundredth of a posterior's usual scale, well below 1.

    Args:
        codes: (examples, latents).
        factors: integer classes, (examples, factors), two factors or more.
        batch: pairs per point.
        learn: points to learn from.
        test: points to test on.
        seed: of the choice of points and examples.
    """
    at_least(1, batch=batch, learn=learn, test=test)
    values = code_table("codes", host_array(codes)).astype(np.float64)
    columns = classes(factors, len(values), None, least=2)
    check_enough(columns)

    def difference(labels: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
        first = _repeated(labels, rng, count * batch).reshape(count, batch)
        second, latents = _partners(labels, first, rng), values.shape[1]
        return _few_at_a_time(
            lambda a, b: np.abs(values[a] - values[b]).mean(1), latents, first, second
        )

    points, factor = _draw(columns, difference, learn + test, seed)
    weight, offset = logistic_regression(points[:learn], factor[:learn], len(columns))
    right = (points @ weight + offset).argmax(1) == factor
    return BetaVAEScore(
        score=float(right[learn:].mean()),
        score_learnt=float(right[:learn].mean()),
        estimator=f"β-VAE score, {learn:,} points learnt, {test:,} tested, {batch} pairs each from "
        f"{len(values):,} examples",
    )


def _draw(
    columns: Sequence[np.ndarray], make: Callable[..., np.ndarray], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `make` gives for a random factor, so many times, and which factor it was: (count, ...), (count,)."""
    rng = np.random.default_rng(seed)
    factor = rng.integers(len(columns), size=count)
    made = [make(labels, rng, int((factor == k).sum())) for k, labels in enumerate(columns)]
    drawn = np.empty((count, *made[0].shape[1:]), dtype=made[0].dtype)
    for k, part in enumerate(made):
        drawn[factor == k] = part
    return drawn, factor


def _few_at_a_time(
    function: Callable[..., np.ndarray], latents: int, *rows: np.ndarray
) -> np.ndarray:
    """A function of batches of rows, (count, batch), whose codes would fill the memory if looked up all at once."""
    at_once = max(1, _NUMBERS // (rows[0].shape[1] * latents))
    starts = range(0, max(1, len(rows[0])), at_once)
    return np.concatenate(
        [function(*(own[start : start + at_once] for own in rows)) for start in starts]
    )


def _repeated(labels: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Random rows whose value another row has too."""
    rows = np.flatnonzero(np.bincount(labels)[labels] > 1)
    if not len(rows):
        raise ValueError(
            "a factor has another value in every row, so no two examples share one; give more examples"
        )
    return rows[rng.integers(len(rows), size=count)]


def _partners(labels: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of these rows a random one with the same value."""
    order, counts = np.argsort(labels, kind="stable"), np.bincount(labels)
    starts = counts.cumsum() - counts
    value = labels[rows]
    return order[starts[value] + (rng.random(rows.shape) * counts[value]).astype(np.int64)]


def logistic_regression(
    points: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (columns, classes) and offsets (classes,) that minimise Σ -ln p(label) + ½ Σ weight²."""
    x, y = torch.from_numpy(points), torch.from_numpy(labels)
    weight = torch.zeros(x.shape[1], classes, dtype=x.dtype, requires_grad=True)
    offset = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, offset],
        max_iter=1_000,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        solver.zero_grad()
        # Per point: the sum over thousands of points would make the first step far too long.
        loss = torch.nn.functional.cross_entropy(x @ weight + offset, y) + (weight**2).sum() / (
            2 * len(x)
        )
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return weight.detach().numpy(), offset.detach().numpy()
