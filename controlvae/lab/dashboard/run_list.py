"""The runs below a folder as a list shows them: where each stands, and what may be done with it."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.dashboard.log_tail import is_number
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training
from controlvae.lab.runs.requests import pending_request
from controlvae.laws.base import Feedback, Law

_ROW = 6  # numbers that are shown one by one
# What the last of these events says of a run that nobody trains: a process that was killed has said nothing.
_ENDS = {
    "finished": "finished",
    "stopped": "stopped",
    "diverged": "diverged",
    "branched": "stopped",
    "started": "broken off",
    "resumed": "broken off",
}


@dataclass(frozen=True)
class Summary:
    """A run in a list: where it stands and what may be done with it."""

    run: str  # its folder below the page's own: how it is asked for
    preset: str
    law: str
    state: str  # training, finished, stopped, diverged, broken off, or not begun
    step: int
    steps: int
    held: str  # the column that has a set point,
    target: float | None  # and the set point, where there is one
    latest: dict[str, float]  # the numbers in the last line of its log
    shows: str  # pictures, sentences or dialogs
    checkpoint: int | None
    steerable: bool  # its set point may be moved
    asked: str | None  # what it was asked and has not taken up yet
    warnings: list[str]


def find(root: Path) -> dict[str, RunFolder]:
    """The runs below a folder, by their paths in it, newest first. They may come and go while one looks."""
    found = []
    for path, _, _ in os.walk(root):
        run = RunFolder(Path(path))
        if (stamp := _stamp(run.experiment_file)) is not None:
            found.append((stamp, run))
    found.sort(key=lambda each: each[0], reverse=True)
    return {run.path.relative_to(root).as_posix(): run for _, run in found}


@dataclass
class RunList:
    """Summaries of the runs below a folder; a run whose files have not changed is not read again."""

    root: Path
    _known: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)

    def look(self) -> list[dict[str, Any]]:
        """Every run as it stands; one that cannot be read says why."""
        runs = find(self.root)
        self._known = {name: self._seen(name, folder) for name, folder in runs.items()}
        return [shown for _, shown in self._known.values()]

    def _seen(self, name: str, folder: RunFolder) -> tuple[Any, dict[str, Any]]:
        training = in_training(folder)
        files = (
            folder.experiment_file,
            folder.log_file,
            folder.events_file,
            folder.checkpoints,
            folder.request_file,
            folder.metrics_file,
        )
        stamp = (training, *(_stamp(file) for file in files))
        before = self._known.get(name)
        if before is not None and before[0] == stamp:
            return before
        try:
            return stamp, asdict(summarise(name, folder, training))
        except UserError as error:
            return stamp, {"run": name, "error": str(error)}
        except (
            Exception
        ) as error:  # one odd folder must not hide the others, whatever is odd about it
            return stamp, {"run": name, "error": f"{folder.path} cannot be read: {error!r}"}


def summarise(name: str, folder: RunFolder, training: bool) -> Summary:
    experiment, last = folder.experiment(), folder.last_record() or {}
    latest = {name: value for name, value in last.items() if is_number(value)}
    return Summary(
        run=name,
        preset=experiment.name,
        law=_law(experiment.control),
        state="training" if training else _rest(folder),
        step=int(latest.get("step", 0)),
        steps=experiment.training.steps,
        held=experiment.controlled_quantity,
        target=_target(experiment, latest),
        latest=latest,
        shows=_shows(experiment),
        checkpoint=latest_step(folder.checkpoints),
        steerable=isinstance(experiment.control, Feedback) and not folder.has_ended(),
        asked=pending_request(folder),
        warnings=_warnings(folder, training),
    )


def _warnings(folder: RunFolder, training: bool) -> list[str]:
    """What is to be known of a run; damaged scores are, and do not hide its curves."""
    try:
        return run_warnings(folder, is_training=training)
    except UserError as error:
        return [str(error)]


def _target(experiment: Experiment, last: Mapping[str, Any]) -> float | None:
    """The set point by the last line of the log; before the first, that of the law."""
    law = experiment.control
    return last.get(
        "target", float(law.initial_state().target) if isinstance(law, Feedback) else None
    )


def _rest(folder: RunFolder) -> str:
    """How a run stands that nobody trains."""
    last = next(
        (event["event"] for event in reversed(folder.events()) if event["event"] in _ENDS), None
    )
    return "not begun" if last is None else _ENDS[last]


def _law(law: Law) -> str:
    """A law as a person would write it: without what goes without saying."""
    given = [
        f"{f.name}={_short(value)}"
        for f in fields(law)  # type: ignore[arg-type]
        if (value := getattr(law, f.name)) != f.default
    ]
    return f"{type(law).__name__}({', '.join(given)})"


def _short(value: object) -> str:
    """A value in a line: of a long row, such as a recorded weight, its ends."""
    if isinstance(value, tuple) and len(value) > _ROW:
        return f"({value[0]:g}, ... {len(value)} numbers ..., {value[-1]:g})"
    return repr(value)


def _shows(experiment: Experiment) -> str:
    match experiment.model:
        case TextVAEConfig():
            return "sentences"
        case DialogVAEConfig():
            return "dialogs"
    return "pictures"


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
