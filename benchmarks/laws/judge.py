"""Judgement of traces: settling, failure, steady-state error and overshoot of every phase.

All errors are shares of a scale, the absolute target unless a problem states another one, so that
targets of any sign and unit are judged alike.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laws.problem import BLOCKS_PER_WINDOW, Problem

BAND = 0.05  # relative error that counts as settled
FAILURE = 0.2  # relative error at the end of a phase that counts as failed


@dataclass(frozen=True)
class PhaseOutcome:
    """Judgement of one run between two changes of the target.

    Args:
        steps: Length of the phase.
        settled: Steps after which running means stay in the band until the phase ends. None if
            that is less than the last tenth.
        error: Mean relative error over the last tenth, with its sign.
        overshoot: Largest relative distance of a running mean beyond the target, seen from the
            start of the phase.
    """

    steps: int
    settled: int | None
    error: float
    overshoot: float

    @property
    def has_failed(self) -> bool:
        """True if the phase ends far from the target or with a value that is not a number."""
        return not abs(self.error) <= FAILURE

    @property
    def settled_or_end(self) -> int:
        """Steps to settle. A phase that does not settle counts as twice its length."""
        return 2 * self.steps if self.settled is None else self.settled


def judge_phase(
    measured: np.ndarray,
    target: np.ndarray,
    *,
    stride: int = 1,
    scale: float | None = None,
    before: float | None = None,
    blocks_per_window: int = BLOCKS_PER_WINDOW,
) -> PhaseOutcome:
    """Judge the measurements of one phase.

    Args:
        measured: Mean measurement of every block of steps.
        target: Mean target of every block.
        stride: Steps of a block.
        scale: Size of a relative error of one; default the absolute last target.
        before: Level before the phase; default the first block.
        blocks_per_window: Blocks of a running mean.
    """
    scale = abs(float(target[-1])) if scale is None else scale
    relative = (np.asarray(measured, float) - target) / scale
    tail = relative[-max(1, len(relative) // 10) :]
    if not np.isfinite(relative).all():
        return PhaseOutcome(len(relative) * stride, None, math.nan, math.inf)
    count = min(blocks_per_window, len(relative))
    means = np.convolve(relative, np.full(count, 1 / count), mode="valid")
    outside = np.flatnonzero(np.abs(means) > BAND)
    first = 0 if len(outside) == 0 else int(outside[-1]) + 1
    # A mean that only passes through the band at the end has not settled.
    has_settled = len(means) - first >= len(tail)
    start = relative[0] if before is None else (before - target[0]) / scale
    beyond = means if start <= 0 else -means
    return PhaseOutcome(
        steps=len(relative) * stride,
        settled=(first + count) * stride if has_settled else None,
        error=float(tail.mean()),
        overshoot=max(0.0, float(beyond.max())),
    )


def judge_run(problem: Problem, measured: np.ndarray) -> list[PhaseOutcome | None]:
    """Judge every phase of one run. A phase whose target is out of reach gives None.

    Args:
        problem: Problem of the run.
        measured: Mean measurement of every block of steps.
    """
    targets, outcomes = problem.target_blocks(), []
    for phase in problem.phases:
        start, stop = phase.start // problem.stride, phase.stop // problem.stride
        before = measured[max(0, start - BLOCKS_PER_WINDOW) : start]
        outcome = judge_phase(
            measured[start:stop],
            targets[start:stop],
            stride=problem.stride,
            scale=problem.scale,
            before=float(before.mean()) if len(before) else None,
        )
        if phase.is_disturbed:  # there is no side from which the target is approached
            outcome = replace(outcome, overshoot=0.0)
        outcomes.append(outcome if phase.is_reachable else None)
    return outcomes


@dataclass(frozen=True)
class LawOutcome:
    """Judgement of one law on one problem over its seeds.

    Args:
        problem: Name of the problem.
        law: Name of the law's setting.
        runs: Phases of every seed.
    """

    problem: str
    law: str
    runs: tuple[tuple[PhaseOutcome | None, ...], ...]

    def _judged(self) -> list[list[PhaseOutcome]]:
        return [[phase for phase in run if phase is not None] for run in self.runs]

    @property
    def failures(self) -> int:
        """Number of seeds with a failed phase."""
        return sum(any(phase.has_failed for phase in run) for run in self._judged())

    @property
    def unsettled(self) -> int:
        """Number of seeds with a phase that does not settle."""
        return sum(any(phase.settled is None for phase in run) for run in self._judged())

    @property
    def has_settled(self) -> bool:
        """True if most seeds settle in all phases."""
        return 2 * self.unsettled <= len(self.runs)

    @property
    def settling(self) -> float:
        """Median over seeds of the steps to settle, summed over phases."""
        return statistics.median(
            sum(phase.settled_or_end for phase in run) for run in self._judged()
        )

    @property
    def settling_after_moves(self) -> list[float]:
        """Median steps to settle after each move to a reachable target or change of the data."""
        moved = list(zip(*(run[1:] for run in self.runs), strict=True))
        return [
            statistics.median(phase.settled_or_end for phase in phases)
            for phases in moved
            if all(phase is not None for phase in phases)
        ]

    @property
    def error(self) -> float:
        """Median over seeds of the largest absolute steady-state error of a phase."""
        return statistics.median(
            max(_finite(abs(phase.error)) for phase in run) for run in self._judged()
        )

    @property
    def overshoot(self) -> float:
        """Median over seeds of the largest overshoot of a phase."""
        return statistics.median(max(phase.overshoot for phase in run) for run in self._judged())


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def judge_law(problem: Problem, law: str, measured: np.ndarray) -> LawOutcome:
    """Judge the runs of one law on one problem.

    Args:
        problem: Problem of the runs.
        law: Name of the law's setting.
        measured: Block means of every seed, (seeds, blocks).
    """
    return LawOutcome(problem.name, law, tuple(tuple(judge_run(problem, row)) for row in measured))


def choose_oracle(outcomes: Sequence[LawOutcome]) -> LawOutcome:
    """Return the setting with the fewest failed seeds that settles soonest.

    Args:
        outcomes: Judgements of all settings of the rivals on one problem.
    """
    return min(outcomes, key=lambda each: (each.failures, each.unsettled, each.settling))
