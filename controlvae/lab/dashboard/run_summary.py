"""Summary of one run for the list of the dashboard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.dashboard.log_tail import is_finite_number
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import pending_request
from controlvae.lab.runs.steering import Reach, Steering, describe_steering, known_reach
from controlvae.laws.base import Feedback, Law

_MAX_LISTED_NUMBERS = 6  # of a long tuple, such as a recorded β
# State of a run that is not training, by the last of these events. A process that was killed has
# logged no end.
_STATES = {
    "finished": "finished",
    "stopped": "stopped",
    "diverged": "diverged",
    "branched": "stopped",
    "started": "interrupted",
    "resumed": "interrupted",
}


@dataclass(frozen=True)
class RunSummary:
    """A run in the list."""

    run: str  # path below the folder of the page
    preset: str
    law: str
    state: str  # training, finished, stopped, diverged, interrupted, not started or a job's
    step: int
    steps: int
    controlled: str  # log column that the target refers to
    target: float | None  # in force now
    latest: dict[str, float]  # numbers in the last record of the log
    shows: str  # images, sentences or dialogs
    checkpoint: int | None
    steerable: bool  # its target may be moved
    request: str | None  # a target request that has not been applied yet
    steering: Steering | None  # what became of requests
    reach: Reach  # limits of the controlled quantity, as far as they are known
    created: float  # seconds since 1970
    warnings: list[str] = field(default_factory=list)
    speed: float | None = None  # steps per second while it trains
    seconds_left: float | None = None


def summarise_run(
    name: str,
    folder: RunFolder,
    is_training: bool,
    experiment: Experiment,
    reached: float | None = None,
) -> RunSummary:
    """Summarise a run, without its warnings.

    Args:
        name: Path of the run below the folder of the page.
        folder: The run folder.
        is_training: True if a process trains the run.
        experiment: The experiment of the run.
        reached: Step of the last move of the target that is known to have been reached.
    """
    last, events, request = folder.last_record() or {}, folder.events(), pending_request(folder)
    latest = {column: value for column, value in last.items() if is_finite_number(value)}
    controlled = experiment.controlled_quantity
    moves = [event["step"] for event in events if event["event"] == "target moved"]
    # A target that was reached once counts as reached.
    was_reached = bool(moves) and moves[-1] == reached
    steering = describe_steering(events, request, controlled, latest, was_reached)
    has_ended = bool(events) and events[-1]["event"] in ("finished", "diverged")
    law = experiment.control
    return RunSummary(
        run=name,
        preset=experiment.name,
        law=_format_law(law, steering),
        state="training" if is_training else _final_state(events),
        step=int(latest.get("step", 0)),
        steps=experiment.training.steps,
        controlled=controlled,
        target=_current_target(experiment, latest, steering),
        latest=latest,
        shows=_shown_kind(experiment),
        checkpoint=latest_step(folder.checkpoints),
        steerable=isinstance(law, Feedback) and experiment.rates is None and not has_ended,
        request=request,
        steering=steering,
        reach=known_reach(events, controlled, latest),
        created=folder.experiment_file.stat().st_mtime,
    )


def _current_target(
    experiment: Experiment, last: Mapping[str, Any], steering: Steering | None
) -> float | None:
    """Return the target in force: the last record's, or a later one set by hand.

    Before the first record it is that of the law.
    """
    law, applied = experiment.control, None if steering is None else steering.applied
    if applied is not None and applied["step"] >= last.get("step", 0):
        return applied["target"]
    initial = float(law.initial_state().target) if isinstance(law, Feedback) else None
    return last.get("target", initial)


def _final_state(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run that is not training."""
    names = (event["event"] for event in reversed(events))
    last = next((name for name in names if name in _STATES), None)
    return "not started" if last is None else _STATES[last]


def _format_law(law: Law, steering: Steering | None) -> str:
    """Format a law as a constructor call with its non-default fields and the target in force."""
    applied = None if steering is None else steering.applied
    moved = {} if applied is None else {"target": applied["target"]}
    arguments = [
        f"{f.name}={_format_value(value)}"
        for f in fields(law)  # type: ignore[arg-type]
        if (value := moved.get(f.name, getattr(law, f.name))) != f.default
    ]
    return f"{type(law).__name__}({', '.join(arguments)})"


def _format_value(value: object) -> str:
    """Format a value on one line; a long tuple by its ends."""
    if isinstance(value, tuple) and len(value) > _MAX_LISTED_NUMBERS:
        return f"({value[0]:g}, ... {len(value)} numbers ..., {value[-1]:g})"
    return repr(value)


def _shown_kind(experiment: Experiment) -> str:
    match experiment.model:
        case TextVAEConfig():
            return "sentences"
        case DialogVAEConfig():
            return "dialogs"
    return "images"
