"""Gradient boosted trees for one factor, all its classes at once: what `dci` reads importances from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, one_hot

_BINS = 256  # per latent, at most: between its quantiles, or one for each of its values where they are fewer
_FEW = 2_048  # rows: of so many each value has its bin, because bins of a few rows hide where a class ends
_APART = 1e-7  # as in scikit-learn: values of float32 that lie no further from each other are one


@dataclass(frozen=True)
class Boosted:
    """What the trees saw in the latents, and the class they give each row."""

    importance: Tensor  # (latents,), adding up to 1; all 0 where no split helped
    predicted: Tensor  # (rows,)


def boost(
    codes: Tensor,
    labels: Tensor,
    *,
    trees: int = 100,
    depth: int = 3,
    rate: float = 0.1,
    seed: int = 0,
) -> Boosted:
    """Fits the first `len(labels)` rows of `codes` (rows, latents), and predicts them all.

    Friedman, *Greedy function approximation: a gradient boosting machine*, 2001, for the multinomial likelihood: the
    defaults of scikit-learn's GradientBoostingClassifier, and its importances: the squared error that a latent's splits
    took away, over all trees. They agree to rounding where no two latents split equally well (the seed chooses, as
    there) and a latent has at most 256 values, or is learnt from at most 2,048 rows; beyond that, a cut is at one of
    255 quantiles. As there, codes are told apart as float32, whatever the sums are computed in. The trees of all
    classes grow together, which for 40 classes is tens of times as fast. Classes are 0, 1, ... and each must occur.
    """
    learnt, classes = len(labels), int(labels.max()) + 1
    binned = torch.stack([_bins(column, learnt) for column in codes.T], dim=1)  # (rows, latents)
    add = _Sums(binned[:learnt])
    target = one_hot(labels, classes).to(codes)  # (learnt, classes)
    score = target.mean(0).log().repeat(len(codes), 1)  # (rows, classes)
    importance = torch.zeros(codes.shape[1], dtype=torch.float64, device=codes.device)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(trees):
        p = score[:learnt].softmax(1)
        residual = target - p
        leaf = _grow(binned, residual, add, depth, importance, generator)
        # One Newton step of the likelihood in each leaf.
        top, bottom = (
            codes.new_zeros(2**depth, classes).scatter_add_(0, leaf[:learnt], part)
            for part in (residual, p * (1 - p))
        )
        step = torch.where(bottom > 1e-30, top / bottom.clamp(min=1e-30), 0.0)
        score += (rate * (1 - 1 / classes) * step).gather(0, leaf)
    total = importance.sum()
    return Boosted(importance / total if total > 0 else importance, score.argmax(1))


def _bins(column: Tensor, learnt: int) -> Tensor:
    """The number of cuts below each value; cuts come from the rows to learn from, and lie where scikit-learn's may."""
    column = column.float()
    ordered = column[:learnt].sort().values
    between = (ordered[1:].double() + ordered[:-1].double()) / 2
    cuts = between[ordered[1:] > ordered[:-1] + _APART]
    if len(cuts) >= _BINS and learnt > _FEW:
        at = torch.arange(1, _BINS, device=column.device) * (learnt - 1) // _BINS
        above = torch.searchsorted(
            cuts, ordered[at].double()
        )  # a quantile that many rows share has its cut after them
        cuts = cuts[above.clamp(max=len(cuts) - 1)].unique()
    return torch.searchsorted(cuts, column.double())


class _Sums:
    """Adds up rows (rows, columns) by the bin of each latent: (latents, bins, columns)."""

    def __init__(self, binned: Tensor) -> None:
        (rows, self.latents), self.bins = binned.shape, int(binned.max()) + 1
        cell = (binned + self.bins * torch.arange(self.latents, device=binned.device)).T.flatten()
        cell, order = cell.sort()
        self.rows = order % rows
        self.starts = torch.searchsorted(
            cell, torch.arange(self.latents * self.bins, device=cell.device)
        )

    def __call__(self, values: Tensor) -> Tensor:
        # A row of all classes is added at once, in an order that does not change: twice as fast as scattering.
        return embedding_bag(self.rows, values, self.starts, mode="sum").view(
            self.latents, self.bins, -1
        )


def _grow(
    binned: Tensor,
    residual: Tensor,
    add: _Sums,
    depth: int,
    importance: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Grows a tree per class on its residual (learnt, classes); each row's leaf (rows, classes)."""
    learnt, classes = residual.shape
    node = torch.zeros(len(binned), classes, dtype=torch.int64, device=binned.device)
    both = torch.stack(
        [residual, torch.ones_like(residual)], dim=1
    )  # the residual and how many: (learnt, 2, classes)
    within = add(both.flatten(1))[None]  # (nodes, latents, bins, 2 · classes)
    for level in range(depth):
        if level:  # a right child has what its parent had and its left sibling has not
            children = within.new_empty(len(within), 2, *within.shape[1:])
            for n, (left, right) in enumerate(children):
                left.copy_(add((both * (node[:learnt] == 2 * n)[:, None]).flatten(1)))
                torch.sub(within[n], left, out=right)
            within = children.flatten(0, 1)
        # Small nodes often have several perfect splits; the first latent would win them all and look important.
        luck = torch.rand(len(within), add.latents, classes, generator=generator).to(residual)
        gain, latent, cut = _best(within.unflatten(3, (2, classes)), 1 + 1e-6 * luck)
        importance.index_add_(0, latent.flatten(), gain.flatten().double())
        node = 2 * node + (binned.gather(1, latent.gather(0, node)) > cut.gather(0, node))
    return node


def _best(within: Tensor, luck: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The split that takes most squared error away, of each node and class: its gain, latent and last bin on the left.

    A node that no split helps sends all it has to the left, with a gain of 0. On a CPU one latent at a time, because
    what that takes stays in the cache; a GPU would wait for its many small operations.
    """
    parts = within.split(within.shape[1] if within.is_cuda else 1, dim=1)
    gains, places = (
        torch.cat(each, dim=1) for each in zip(*(_gain(part).max(2) for part in parts), strict=True)
    )
    gain, latent = (gains * luck).max(1)  # (nodes, classes)
    cut = places.gather(1, latent[:, None])[:, 0]
    return gain, latent, torch.where(gain > 0, cut, within.shape[2])


def _gain(within: Tensor) -> Tensor:
    """What a cut after each bin takes away of the squared error, (nodes, latents, bins, classes).

    From sums S and counts n of the rows on its left, S' and N of all: (N S - n S')² / (N n (N - n)).
    """
    below = within.cumsum(2)  # (nodes, latents, bins, 2, classes)
    (left, some), (total, count) = (part.unbind(3) for part in (below, below[:, :, -1:]))
    above = (left * count).addcmul_(total, some, value=-1).square_()
    under = (count - some).mul_(some).mul_(count)
    return above.div_(under.masked_fill_(under == 0, torch.inf))  # nothing on one side is no cut
