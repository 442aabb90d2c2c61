"""DCI-ES: DCI with explicitness, from loss-capacity curves of probes, and the size of the code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.metrics._validation import (
    as_code_tensor,
    by_factor_name,
    check_at_least,
    factor_labels,
    resolve_device,
    split_train_test,
)
from controlvae.metrics.disentanglement.dci import dci

_RIDGE = 1e-3  # per example, so that wide probes stay solvable
_WIDTHS = (0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)


@dataclass(frozen=True)
class DCIES:
    """Five scores, higher is better, and the curves behind explicitness."""

    disentanglement: float
    completeness: float
    informativeness: float  # test score of the best probe: R² or accuracy, mean over the factors
    explicitness: float  # 1 if the smallest probe is as good as the best
    size: float  # factors / latents
    per_factor: dict[str, float] | list[float]  # explicitness
    capacities: list[float]  # log of the inputs of the linear layer
    losses: list[list[float]]  # (factors, capacities), least so far
    estimator: str


@torch.no_grad()
def dci_es(
    codes: Any,
    factors: Any,
    *,
    quantities: Sequence[int] = (),
    widths: Sequence[int] = _WIDTHS,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> DCIES:
    r"""Compute disentanglement, completeness, informativeness, explicitness and size.

    .. math:: E_k = 1 - \frac{\int_{\kappa_0}^{\kappa_1} \big(\ell_k(\kappa) - \min \ell_k\big)
              \, d\kappa}{\frac12 (\kappa_1 - \kappa_0) \, \ell_k^{\text{chance}}}, \qquad
              S = \frac KL

    :math:`\ell_k(\kappa)` is the least test loss of probes up to capacity κ. A code from which a
    linear probe already reads a factor as well as any other has E = 1 (Eastwood et al., *DCI-ES:
    an extended disentanglement framework with connections to identifiability*, 2023). D and C are
    those of `dci`.

    Probes are random Fourier features, one of the paper's three families: a ridge regression on the
    standardised codes and on cosines of random directions, `widths` of them. Capacity is the
    logarithm of the number of its inputs. The authors train theirs by gradient descent, so E
    depends on the family and on `widths`: compare it at equal settings.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        quantities: Columns of factors that are quantities. Their loss is 1 - R², that of the others
            1 - accuracy.
        widths: Increasing numbers of random features; at least two.
        learn: Training examples. With fewer than `learn + test` examples, all of them are split in
            that proportion.
        test: Test examples.
        seed: Seed of the choice of examples, the trees and the random features.
        factor_names: Names of the factors in the result.
        device: Device to compute on; default that of `codes`.

    Returns:
        The five scores and the curves.

    >>> factors = np.indices((4, 4)).reshape(2, -1).T.repeat(20, axis=0)
    >>> scores = dci_es(1.0 * factors, factors, quantities=(0, 1))
    >>> round(scores.explicitness, 2), scores.size
    (1.0, 1.0)
    """
    check_at_least(0, **{f"widths[{n}]": width for n, width in enumerate(widths)})
    if len(widths) < 2 or sorted(set(widths)) != list(widths):
        raise ValueError(f"widths must be at least 2 increasing numbers, got {list(widths)}")
    table = as_code_tensor("codes", codes).double()
    table = table.to(resolve_device(device, table))
    labels = factor_labels(factors, len(table), factor_names, min_factors=2)
    if not all(0 <= column < len(labels) for column in quantities):
        raise ValueError(
            f"quantities must be columns of factors, 0 to {len(labels) - 1}, got {list(quantities)}"
        )
    trees = dci(table, factors, learn=learn, test=test, seed=seed, factor_names=factor_names)
    rows, others = split_train_test(labels, learn, test, seed, factor_names)
    probes = _Probes(_random_features(table, rows, max(widths), seed), rows, others)
    sizes = [table.shape[1] + width for width in widths]
    losses, chances = [], []
    for number, column in enumerate(labels):
        is_quantity = number in quantities
        losses.append(probes.losses(column, sizes, is_quantity))
        commonest = np.bincount(column[rows]).max() / len(rows)
        chances.append(1.0 if is_quantity else 1 - float(commonest))
    capacities = [float(np.log(size)) for size in sizes]
    explained = [
        explicitness_of_curve(capacities, curve, chance)
        for curve, chance in zip(losses, chances, strict=True)
    ]
    best = [np.minimum.accumulate(curve).tolist() for curve in losses]
    return DCIES(
        disentanglement=trees.disentanglement,
        completeness=trees.completeness,
        informativeness=float(np.mean([1 - curve[-1] for curve in best])),
        explicitness=float(np.mean(explained)),
        size=len(labels) / table.shape[1],
        per_factor=by_factor_name(explained, factor_names),
        capacities=capacities,
        losses=best,
        estimator=f"DCI-ES with random Fourier features (up to {max(widths):,}) and boosted trees, "
        f"{len(rows):,} examples learnt, {len(others):,} tested",
    )


def explicitness_of_curve(
    capacities: Sequence[float], losses: Sequence[float], chance: float
) -> float:
    """Return the explicitness of a loss-capacity curve of any probes.

    Args:
        capacities: Increasing capacities of the probes.
        losses: Loss of each probe. Of a larger probe that does worse, the best smaller one counts.
        chance: Loss of the best constant prediction.

    >>> explicitness_of_curve([0.0, 1.0, 2.0], [0.5, 0.0, 0.0], chance=1.0)
    0.75
    """
    if len(capacities) != len(losses) or len(losses) < 2 or chance <= 0:
        raise ValueError(
            "a curve needs at least 2 capacities with a loss each and a chance level above 0, got "
            f"{len(capacities)} capacities, {len(losses)} losses, chance {chance}"
        )
    least = np.minimum.accumulate(np.asarray(losses, dtype=np.float64))
    excess = least - least[-1]
    steps = np.diff(np.asarray(capacities, dtype=np.float64))
    area = float((steps * (excess[1:] + excess[:-1])).sum())  # twice that under the curve
    return 1 - area / (float(steps.sum()) * chance)


def _random_features(codes: Tensor, rows: np.ndarray, count: int, seed: int) -> Tensor:
    """Return standardised codes and random Fourier features, (examples, latents + count)."""
    chosen = codes[torch.from_numpy(rows).to(codes.device)]
    spread = chosen.std(0, correction=0)
    scaled = (codes - chosen.mean(0)) / torch.where(spread > 0, spread, 1.0)
    generator = torch.Generator().manual_seed(seed)
    latents = codes.shape[1]
    # A length scale of √latents, the usual distance of standardised codes up to √2.
    direction = torch.randn(latents, count, generator=generator, dtype=torch.float64)
    phase = 2 * torch.pi * torch.rand(count, generator=generator, dtype=torch.float64)
    waves = torch.cos(scaled @ (direction / latents**0.5).to(codes) + phase.to(codes))
    return torch.cat([scaled, waves * 2**0.5], dim=1)


class _Probes:
    """Ridge regressions on the first columns of `inputs`, (examples, columns)."""

    def __init__(self, inputs: Tensor, rows: np.ndarray, others: np.ndarray) -> None:
        self.rows, self.others = (torch.from_numpy(r).to(inputs.device) for r in (rows, others))
        self.centre = inputs[self.rows].mean(0)
        self.inputs = inputs - self.centre
        self.learnt, self.tested = self.inputs[self.rows], self.inputs[self.others]
        self.gram = self.learnt.T @ self.learnt / len(rows)
        self.gram.diagonal().add_(_RIDGE)

    def losses(self, labels: np.ndarray, sizes: Sequence[int], is_quantity: bool) -> list[float]:
        """Return 1 - R² or 1 - accuracy on the test examples for each number of columns."""
        label = torch.from_numpy(labels).to(self.inputs.device)
        classes = torch.eye(int(labels.max()) + 1).to(self.inputs)
        target = label.to(self.inputs)[:, None] if is_quantity else classes[label]
        mean, truth = target[self.rows].mean(0), target[self.others]
        moment = self.learnt.T @ (target[self.rows] - mean) / len(self.rows)
        losses = []
        for size in sizes:
            factor = torch.linalg.cholesky(self.gram[:size, :size])
            predicted = self.tested[:, :size] @ torch.cholesky_solve(moment[:size], factor) + mean
            if is_quantity:
                spread = truth.var(correction=0).clamp(min=1e-12)
                losses.append(((predicted - truth).square().mean() / spread).item())
            else:
                wrong = predicted.argmax(1) != label[self.others]
                losses.append(wrong.double().mean().item())
        return losses
