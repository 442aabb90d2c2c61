"""Corrupt examples of user-supplied data: NaN, infinity, or values far out of the data's range."""

from typing import Any

import torch
from torch import Tensor

from controlvae.lab.custom.batches import iter_tensors
from controlvae.lab.custom.feeds import ArrayFeed, Feed, LoaderFeed
from controlvae.lab.custom.seeding import seeded

_FAR_FACTOR = 30.0  # times the peak of nine tenths of the examples
_SAMPLE, _CHUNK = 1_024, 1_024
_MAX_READ = 200_000  # examples of a data set that are read to find all corrupt ones


def find_corrupt_examples(feed: Feed, step: int) -> list[int]:
    """Return the indices of corrupt examples if the batch of a step has some, else nothing.

    Once a batch has one, all examples are read, because every repair costs a rollback.

    Args:
        feed: Batches of the run.
        step: Number of the step, counted from zero.
    """
    if not isinstance(feed, ArrayFeed | LoaderFeed):
        return []
    batch = feed.order.indices(step)
    spread = torch.linspace(0, feed.order.count - 1, min(_SAMPLE, feed.order.count)).long()
    trained = feed.order.permutation(0).sort().values
    limit = _peak_limit(_peaks(feed, trained[spread]))
    if limit is None or not bool(_is_corrupt(_peaks(feed, batch), limit).any()):
        return []
    if len(trained) > _MAX_READ:
        trained = batch
    return [
        int(index)
        for part in trained.split(_CHUNK)
        for index in part[_is_corrupt(_peaks(feed, part), limit)]
    ]


def _peak_limit(peaks: Tensor) -> float | None:
    finite = peaks[torch.isfinite(peaks)]
    if not len(finite):
        return None
    typical = float(finite.quantile(0.9))
    return _FAR_FACTOR * typical if typical > 0 else None


def _is_corrupt(peaks: Tensor, limit: float) -> Tensor:
    return ~(peaks <= limit)  # NaN too


def _peaks(feed: ArrayFeed | LoaderFeed, indices: Tensor) -> Tensor:
    """Return the largest magnitude of each example's values: (examples,). Integers count nothing."""
    with seeded(feed.order.seed, 0):
        found: Any = (
            feed.gather(indices.to(feed.device))
            if isinstance(feed, ArrayFeed)
            else feed.data.fetch(indices)
        )
    peaks = torch.zeros(len(indices), dtype=torch.float64)
    for _, tensor in iter_tensors(found):
        if tensor.is_floating_point() and tensor.dim() and len(tensor) == len(indices):
            values = tensor.detach().double().abs().reshape(len(tensor), -1)
            peaks = torch.maximum(peaks, values.amax(1).cpu()) if values.shape[1] else peaks
    return peaks
