"""Steering of a run: the targets it is known to reach, and what became of a request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from controlvae.lab.reading import parse_json
from controlvae.lab.runs.records import is_finite

Outcome = Literal["asked", "approaching", "reached", "out of reach"]
_FAR_FACTOR = 10.0  # beyond what is known to be reachable, at which a target is refused
_ON_TARGET = 0.05  # relative distance at which a target counts as reached
_REACH_EVENTS = ("target out of reach", "target in reach again", "target moved")


class Reach(NamedTuple):
    """Limits of the controlled quantity at the bounds of the weight; None where unknown."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Steering:
    """Requests to move a target, and their outcome."""

    asked: float | None  # target of a request that has not been applied yet
    applied: dict[str, float] | None  # target and step of the last move
    outcome: Outcome
    reach: Reach


def known_reach(
    events: Iterable[Mapping[str, Any]], controlled: str, last: Mapping[str, Any]
) -> Reach:
    """Return what a run has shown of its reach: where its weight stuck at a bound.

    Args:
        events: Events of the run.
        controlled: Log column that the target refers to.
        last: Last record of the log, which disproves a limit that it exceeds.
    """
    limits: dict[str, float | None] = {"low": None, "high": None}
    side = None
    for event in events:
        if event["event"] == "target out of reach" and is_finite(event.get(controlled)):
            side = "low" if event[controlled] > event["target"] else "high"
            limits[side] = float(event[controlled])
        elif event["event"] == "target in reach again" and side is not None:
            limits[side] = None
    low, high, measured = limits["low"], limits["high"], last.get(controlled)
    if measured is not None and is_finite(measured):
        low = None if low is None else min(low, float(measured))
        high = None if high is None else max(high, float(measured))
    return Reach(low, high)


def check_reach(target: float, reach: Reach, seen: Sequence[float]) -> str | None:
    """Return a note on a target outside the known reach, or None.

    Args:
        target: The requested target.
        reach: Known limits.
        seen: Values that the run has had, and its present target.

    Raises:
        ValueError: If the target is absurd: ten times more than any value known to be reachable, or
            a tenth of the known lower limit.
    """
    upper = list(seen) if reach.high is None else [reach.high]
    if upper and target > (most := max(upper)) + (_FAR_FACTOR - 1) * abs(most):
        raise ValueError(_refuse(target, "above", reach, most))
    low = reach.low
    if low is not None and target < (low / _FAR_FACTOR if low > 0 else _FAR_FACTOR * low):
        raise ValueError(_refuse(target, "below", reach, low))
    if low is not None and target < low:
        return f"{target:g} nats is below the reach known so far, {low:.4g} nats and more"
    if reach.high is not None and target > reach.high:
        return f"{target:g} nats is above the reach known so far, up to {reach.high:.4g} nats"
    return None


def describe_steering(
    events: Sequence[Mapping[str, Any]],
    request: str | None,
    controlled: str,
    last: Mapping[str, Any],
    was_reached: bool = False,
) -> Steering | None:
    """Return what became of the requests to move a target, or None if there were none.

    Args:
        events: Events of the run.
        request: Text of the pending request, or None.
        controlled: Log column that the target refers to.
        last: Last record of the log.
        was_reached: The last target was seen to be reached before.
    """
    moves = [event for event in events if event["event"] == "target moved"]
    if not moves and request is None:
        return None
    applied = {name: moves[-1][name] for name in ("target", "step")} if moves else None
    reach = known_reach(events, controlled, last)
    latest = [event["event"] for event in events if event["event"] in _REACH_EVENTS][-1:]
    outcome: Outcome = "approaching"
    if request is not None:
        outcome = "asked"
    elif latest == ["target out of reach"]:
        outcome = "out of reach"
    elif was_reached or (applied is not None and _is_reached(applied, last.get(controlled), last)):
        outcome = "reached"
    return Steering(_requested(request), applied, outcome, reach)


def _is_reached(applied: Mapping[str, float], measured: Any, last: Mapping[str, Any]) -> bool:
    target = applied["target"]
    later = is_finite(last.get("step")) and last["step"] > applied["step"]
    return later and is_finite(measured) and abs(measured - target) <= _ON_TARGET * abs(target)


def _requested(request: str | None) -> float | None:
    """Return the number in a request, or None if it holds none."""
    try:
        content = parse_json(request or "")
    except ValueError:
        return None
    target = content.get("target") if isinstance(content, dict) else None
    return float(target) if target is not None and is_finite(target) else None


def _refuse(target: float, side: str, reach: Reach, limit: float) -> str:
    if reach.low is not None and reach.high is not None:
        known = f"{reach.low:.4g} to {reach.high:.4g} nats"
    elif side == "above":
        known = f"up to {limit:.4g} nats"
    else:
        known = f"{limit:.4g} nats and more"
    return f"a target of {target:g} nats is far {side} what the run is known to reach: {known}"
