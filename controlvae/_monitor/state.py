"""State of the monitor of a control loop, and operations on its vectors."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.laws.backend import FLOATS, Value
from controlvae.laws.base import Feedback, Law

BLOCK_STEPS = 25  # updates of the law in a block
RECENT_BLOCKS = 8
STORED_MEANS = 16


class BlockSums(NamedTuple):
    """Sums over the block that is being filled."""

    block_steps: Value = 0.0  # updates of the law
    block_usable: Value = 0.0  # usable measurements
    block_deviation: Value = 0.0  # sum of measured - target


class MonitorState(NamedTuple):
    """State of the monitor. Deviations are block means of measured - target."""

    skipped: Value  # number of unusable measurements
    blocks: Value  # blocks since the start or the last jump of the target
    target: Value  # target at the end of the last block
    first: Value  # mean measurement of the first block since then
    peak: Value  # largest absolute mean measurement of a block
    noise: Value  # variance of the mean of a block
    in_band: Value  # consecutive blocks in the band
    since: Value  # step at which the loop entered the band
    base_step: Value  # step of the start or of the last jump of the target
    ref_step: Value  # step of the last progress towards the target
    ref_deviation: Value  # deviation at that step
    ref_beta: Value  # weight at that step
    progressed: Value  # 1 after the first progress since base_step
    moving_away: Value  # consecutive blocks that moved away from the target
    at_bound: Value  # blocks at beta_max (positive) or at beta_min (negative)
    fault: Value  # fault that the last blocks show: see `_faults`
    mean_length: Value  # number of blocks in a stored mean
    mean_count: Value  # number of stored means
    part_sum: Value  # sum of the deviations that do not fill a mean yet
    part_count: Value  # their number
    recent: Value  # the last deviations, newest first: (RECENT_BLOCKS, ...)
    means: Value  # stored means since the loop entered the band: (STORED_MEANS, ...)


class LawTraits(NamedTuple):
    """Properties of the law, or of the laws of several models, that the monitor needs."""

    low: Value  # smallest weight
    high: Value  # largest weight
    one_sided: Value  # 1 for a target that is an upper limit, -1 for a lower limit, else 0
    closed_loop: Value  # 1 for a feedback law, else 0
    inverse: Value  # 1 for a quantity that grows with its weight, else 0


class Reading(NamedTuple):
    """State of the law at the end of a block."""

    step: Value
    target: Value
    beta: Value
    unclamped_beta: Value


SCALAR_FIELDS = MonitorState._fields[:-2]
MONITOR_FIELDS = (
    *SCALAR_FIELDS,
    *(f"recent_{number}" for number in range(RECENT_BLOCKS)),
    *(f"mean_{number}" for number in range(STORED_MEANS)),
)


class FloatVectors:
    """Operations on the vectors of the state as tuples of floats."""

    where = staticmethod(FLOATS.where)

    @staticmethod
    def push(recent: Any, value: float) -> Any:
        return (value, *recent[:-1])

    @staticmethod
    def mean(recent: Any, start: int, stop: int) -> float:
        return sum(recent[start:stop]) / (stop - start)

    @staticmethod
    def fill(recent: Any, value: float) -> Any:
        return (value,) * len(recent)

    @staticmethod
    def noise(recent: Any) -> float:
        triples = zip(recent, recent[1:], recent[2:], strict=False)
        return sum((a - 2 * b + c) ** 2 for a, b, c in triples) / (6 * (len(recent) - 2))

    @staticmethod
    def store(means: Any, index: float, value: float) -> Any:
        number = int(index)
        if number < 0:
            return means
        return (*means[:number], value, *means[number + 1 :])

    @staticmethod
    def halve(means: Any) -> Any:
        pairs = zip(means[::2], means[1::2], strict=True)
        return (*((a + b) / 2 for a, b in pairs), *means[len(means) // 2 :])


class TensorVectors:
    """Operations on the vectors of the state as tensors with the entries on the first axis."""

    where = staticmethod(torch.where)

    @staticmethod
    def push(recent: Tensor, value: Tensor) -> Tensor:
        return torch.cat([value[None], recent[:-1]])

    @staticmethod
    def mean(recent: Tensor, start: int, stop: int) -> Tensor:
        return recent[start:stop].mean(0)

    @staticmethod
    def fill(recent: Tensor, value: Tensor) -> Tensor:
        return value[None].expand_as(recent)

    @staticmethod
    def noise(recent: Tensor) -> Tensor:
        second = recent[:-2] - 2 * recent[1:-1] + recent[2:]
        return second.square().mean(0) / 6

    @staticmethod
    def store(means: Tensor, index: Tensor, value: Tensor) -> Tensor:
        numbers = torch.arange(len(means), dtype=means.dtype, device=means.device)
        numbers = numbers.view(-1, *[1] * (means.dim() - 1))
        return torch.where(numbers == index, value, means)

    @staticmethod
    def halve(means: Tensor) -> Tensor:
        return torch.cat([(means[::2] + means[1::2]) / 2, means[len(means) // 2 :]])


FLOAT_VECTORS, TENSOR_VECTORS = FloatVectors(), TensorVectors()


def initial_monitor(beta: Value, step: Value = 0.0, skipped: Value = 0.0) -> MonitorState:
    """Return the state of the monitor before its first block.

    Args:
        beta: Current weight.
        step: Number of updates so far.
        skipped: Number of unusable measurements so far.
    """
    zero = 0.0 * beta
    values = dict.fromkeys(SCALAR_FIELDS, zero)
    values |= {"ref_beta": beta, "base_step": zero + step, "ref_step": zero + step}
    values |= {"skipped": zero + skipped, "mean_length": zero + 1}
    return MonitorState(**values, recent=(zero,) * RECENT_BLOCKS, means=(zero,) * STORED_MEANS)


def pack_values(state: MonitorState) -> list[Value]:
    """Return the values of a state whose vectors are tuples, in the order of `MONITOR_FIELDS`."""
    return [*state[:-2], *state.recent, *state.means]


def unpack_floats(values: Sequence[Value]) -> MonitorState:
    """Return the state that `pack_values` has packed."""
    first = len(SCALAR_FIELDS)
    recent, means = values[first : first + RECENT_BLOCKS], values[first + RECENT_BLOCKS :]
    return MonitorState._make([*values[:first], tuple(recent), tuple(means)])


def pack_tensors(state: MonitorState) -> Tensor:
    """Return the values of a state of tensors as rows, in the order of `MONITOR_FIELDS`."""
    return torch.cat([torch.stack(state[:-2]), state.recent, state.means])


def unpack_tensors(rows: Tensor) -> MonitorState:
    """Return the state whose rows `pack_tensors` has stacked, as views."""
    first = len(SCALAR_FIELDS)
    recent, means = rows[first : first + RECENT_BLOCKS], rows[first + RECENT_BLOCKS :]
    return MonitorState._make([*rows[:first].unbind(0), recent, means])


def read_traits(law: Law) -> LawTraits:
    """Return the properties of a law that the monitor needs."""
    low, high = law.bounds
    sides = {"at_most": 1.0, "at_least": -1.0}
    one_sided = sides.get(getattr(law, "constraint", "equal"), 0.0)
    inverse = float(getattr(law, "direction", "direct") == "inverse")
    return LawTraits(low, high, one_sided, float(isinstance(law, Feedback)), inverse)
