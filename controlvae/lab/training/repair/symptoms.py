"""Symptoms of a run that goes wrong, found in the lines of its log.

Each test is a function of records alone, so that a resumed run finds what an unbroken one finds.
Thresholds are far from what clean runs do: a repair that is not needed is worse than a late one.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD
from controlvae.lab.config import Experiment
from controlvae.lab.engines.measurements import format_nats

Kind = Literal[
    "non-finite loss",
    "corrupt examples",
    "half precision",
    "wrong units",
    "burst",
    "divergence",
    "collapse",
    "dead code",
]
Records = Sequence[dict[str, Any]]

_CALM_LINES, _BURST_LINES = 10, 5
_BURST_SPREADS = 10.0  # of the calm lines, as their median absolute deviation
_BURST_SHARE = 0.5  # of the calm value
_KL_BURST, _ON_TARGET = 2.0, 0.3  # of the calm KL, and of the target before
_SAME_WEIGHT = 3.0  # factor within which β may move in a burst
_STUCK_LINES, _STUCK_STEPS = 20, 100
_DEAD_SPREAD = 1e-3  # of a KL between batches, relative to it
_NOTHING_SHARE = 0.1  # of the target
_FLAT = 0.95  # of a reconstruction that does not improve
_REGROWTH, _FALL = 3.0, 10.0  # of a KL that does not come back, and that was there before
_HEALTHY = 100.0  # factor around the target within which a KL is no leap
_RELEASED_WEIGHT = 1e-2  # β below which a controller no longer restrains a code
_DIVERGED_LINES, _DIVERGED_FACTOR, _DIVERGED_NATS = 10, 50.0, 1e3
LINES_NEEDED = max(_STUCK_LINES, _CALM_LINES + _BURST_LINES, _DIVERGED_LINES) + 1


@dataclass(frozen=True)
class Symptom:
    """What went wrong in a run.

    Attributes:
        kind: Name of the symptom.
        since: Last step before the wrong turn. A good checkpoint is not later.
        evidence: What was measured.
        examples: Indices of corrupt examples.
        factor: Factor that puts the reconstruction into nats per example.
    """

    kind: Kind
    since: int
    evidence: str
    examples: tuple[int, ...] = ()
    factor: float = 1.0


def find_symptom(records: Records, experiment: Experiment) -> Symptom | None:
    """Return the symptom that the newest lines of a log show, or None.

    Args:
        records: The newest lines, oldest first.
        experiment: Settings of the run.
    """
    if experiment.rates is not None:  # several set points in one batch
        return None
    tests: tuple[Callable[[Records, Experiment], Symptom | None], ...] = (
        _find_collapse,
        _find_dead_code,
        _find_divergence,
        _find_burst,
    )
    return next((found for test in tests if (found := test(records, experiment))), None)


def _find_collapse(records: Records, experiment: Experiment) -> Symptom | None:
    """Find a KL near zero that a lower bound of the weight holds there."""
    lines, low = _stuck_lines(records, experiment), experiment.control.bounds[0]
    if not lines or low <= 0:
        return None
    held = all(line["saturated"] > 0.5 and line["beta"] <= 1.01 * low for line in lines)
    tiny = all(line["kl"] < max(COLLAPSE_THRESHOLD, 0.1 * line["target"]) for line in lines)
    rises = lines[-1]["kl"] > 1.1 * min(line["kl"] for line in lines)
    if not held or not tiny or rises:
        return None
    last = lines[-1]
    evidence = (
        f"KL {last['kl']:.3f} nats for a target of {format_nats(last['target'])}, with β at its "
        f"lower bound {low:g} for {len(lines)} log lines"
    )
    return Symptom("collapse", _step_before(records, len(lines)), evidence)


def _find_dead_code(records: Records, experiment: Experiment) -> Symptom | None:
    """Find a code that carries nothing for long although no weight restrains it any more.

    Either its KL is the same in every batch, or it has fallen to next to nothing and does not come
    back. A code that has not grown yet is none: its KL is that of a random encoder, or rises.
    """
    lines, low = _stuck_lines(records, experiment), experiment.control.bounds[0]
    free = max(_RELEASED_WEIGHT, 1.01 * low)
    if not lines or any(line["beta"] > free for line in lines):
        return None
    first, last, target = lines[0], lines[-1], lines[-1]["target"]
    is_constant = all(
        line["kl"] < 0.5 * target and line["kl_sd"] <= _DEAD_SPREAD * line["kl"] for line in lines
    )
    has_fallen = (
        all(line["kl"] < _NOTHING_SHARE * target for line in lines)
        and last["kl"] < _REGROWTH * first["kl"]
        and max(line["kl"] for line in records) > _FALL * max(line["kl"] for line in lines)
        and not _improves(lines)
    )
    if not is_constant and not has_fallen:
        return None
    evidence = (
        f"KL {last['kl']:.2g} nats for a target of {format_nats(target)} in {len(lines)} log lines, "
        f"with β at {last['beta']:.2g}"
    )
    # It died before the weight was released, perhaps in a leap of the KL.
    healthy = [
        line["step"]
        for line in records[: -len(lines)]
        if target / _HEALTHY < line["kl"] < _HEALTHY * target
        and line["kl_sd"] > _DEAD_SPREAD * line["kl"]
    ]
    return Symptom("dead code", int(healthy[-1]) if healthy else 0, evidence)


def _find_divergence(records: Records, experiment: Experiment) -> Symptom | None:
    """Find a controlled KL that stays far out of reach of any weight."""
    lines = records[-_DIVERGED_LINES:]
    if len(lines) < _DIVERGED_LINES or not _has_kl_target(lines, experiment):
        return None
    limits = (max(_DIVERGED_NATS, _DIVERGED_FACTOR * line["target"]) for line in lines)
    if not all(line["kl"] > limit for line, limit in zip(lines, limits, strict=True)):
        return None
    last = lines[-1]
    evidence = (
        f"KL {last['kl']:.3g} nats for a target of {format_nats(last['target'])}, for "
        f"{len(lines)} log lines"
    )
    return Symptom("divergence", _step_before(records, len(lines)), evidence)


def _find_burst(records: Records, experiment: Experiment) -> Symptom | None:
    """Find a loss that was calm, jumps and stays, while neither set point nor weight explains it."""
    if len(records) < _CALM_LINES + _BURST_LINES:
        return None
    calm, lines = records[-_CALM_LINES - _BURST_LINES : -_BURST_LINES], records[-_BURST_LINES:]
    targets = {line["target"] for line in (*calm, *lines)}
    is_moving = None not in targets and max(targets) > 1.01 * min(targets)
    if is_moving:
        return None
    for name in ("reconstruction", "kl"):
        if evidence := _find_jump(name, calm, lines):
            return Symptom("burst", calm[-1]["step"], evidence)
    return None


def _find_jump(name: str, calm: Records, lines: Records) -> str:
    """Return words about a column that jumps and stays, or an empty text.

    Args:
        name: Column of the log.
        calm: Lines before the jump.
        lines: Lines after it.
    """
    middle = statistics.median(line[name] for line in calm)
    spread = statistics.median(abs(line[name] - middle) for line in calm)
    weight = statistics.median(line["beta"] for line in calm)
    weights, target = [line["beta"] for line in lines], calm[-1]["target"]
    limit = max(_BURST_SPREADS * spread, _BURST_SHARE * abs(middle))
    if name == "reconstruction":
        # A larger weight explains a larger one, unless it lasts for a line or two: the answer of a
        # controller to the jump.
        explained = statistics.median(weights) > _SAME_WEIGHT * weight + 1e-3
    else:  # so does a smaller weight for a KL, and a KL on its way to the target overshoots
        limit = max(limit, _KL_BURST * max(abs(middle), 1.0))
        explained = min(weights) < weight / _SAME_WEIGHT or (
            target is not None and abs(middle - target) > _ON_TARGET * abs(target)
        )
    is_calm = max(abs(line[name] - middle) for line in calm) < 0.5 * limit
    if explained or not is_calm or any(line[name] < middle + limit for line in lines):
        return ""
    now = statistics.median(line[name] for line in lines)
    return f"{name} {middle:.4g} nats in {len(calm)} calm log lines, then {now:.4g} in {len(lines)}"


def _improves(lines: Records) -> bool:
    """Return whether the reconstruction is lower in the second half of some lines."""
    half = len(lines) // 2
    before, after = (
        statistics.median(line["reconstruction"] for line in part)
        for part in (lines[:half], lines[half:])
    )
    return after < before - (1 - _FLAT) * abs(before)


def _stuck_lines(records: Records, experiment: Experiment) -> Records:
    """Return the lines that a stuck KL is read from, or none if they are too few."""
    needed = max(_STUCK_LINES, 1 + math.ceil(_STUCK_STEPS / experiment.training.log_every))
    lines = records[-needed:]
    return lines if len(lines) == needed and _has_kl_target(lines, experiment) else []


def _has_kl_target(lines: Records, experiment: Experiment) -> bool:
    is_kl = experiment.controlled_quantity == "kl"
    return is_kl and all((line["target"] or 0) > 0 for line in lines)


def _step_before(records: Records, lines: int) -> int:
    """Return the step of the line before the last `lines` ones. 0 is the start."""
    return int(records[-lines - 1]["step"]) if len(records) > lines else 0
