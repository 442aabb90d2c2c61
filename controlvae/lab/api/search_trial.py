"""One trial of a search: trained or resumed, pruned by its validation curve, and measured."""

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from controlvae.errors import Diverged, RunError, UserError, is_out_of_memory
from controlvae.lab.cluster.search import Claim, LostClaimError, SearchStudy
from controlvae.lab.cluster.search_records import State
from controlvae.lab.cluster.search_settings import SearchSettings
from controlvae.lab.cluster.search_space import describe_values, make_assignments
from controlvae.lab.config import Experiment, override
from controlvae.lab.custom.task import remember_task
from controlvae.lab.evaluation.cache import evaluate_cached
from controlvae.lab.evaluation.search_objective import CURVES, SearchObjective
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run
from controlvae.lab.training.display import Display, ShowFraction, ShowProgress
from controlvae.lab.training.loop import Progress
from controlvae.lab.training.runner import RunOptions, resume_runs


@dataclass(frozen=True)
class TrialOutcome:
    """End of a trial: a value, a state without one, or neither if it has to be resumed."""

    value: float | None = None
    state: State = "waiting"
    reason: str = ""


class TrialDisplay(Display):
    """Display of the runs of a search: progress and warnings, each line of text once.

    Args:
        display: Display of the search.
    """

    def __init__(self, display: Display) -> None:
        self._display, self._seen = display, set[str]()

    def note(self, line: str) -> None:
        """Show a message, unless an earlier trial had the same."""
        if line not in self._seen and not line.startswith("threads:"):
            self._display.note(line)
        self._seen.add(line)

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield a function that shows the progress of training."""
        with self._display.training(experiments, start) as show:
            yield show

    @contextmanager
    def bar(self, title: str) -> Iterator[ShowFraction]:
        """Yield a function that shows the completed fraction of an evaluation."""
        with self._display.bar(title) as show:
            yield show


class _Prune(Exception):
    """Raised in a callback of training to stop a trial."""


class _Pruner:
    """Callback that reports the validation curve of a run, and stops it if it is hopeless.

    Args:
        study: Study of the search.
        claim: The trial.
        column: Column of the validation curve.
    """

    def __init__(self, study: SearchStudy, claim: Claim, column: str) -> None:
        self._study, self._claim, self._column = study, claim, column
        # Optuna takes every point in the direction of the objective.
        self._sign = 1 if CURVES[column] == study.better else -1
        self._reported = 0

    def __call__(self, progress: Progress) -> None:
        """Report the points that were measured since the last call."""
        if all(record is None for record in progress.records):
            return
        points = self._claim.run.validations()
        for point in points[self._reported :]:
            self._reported += 1
            value = self._sign * point[self._column]
            if self._study.report(self._claim, point["step"], value):
                raise _Prune(f"{self._column} {point[self._column]:.4g} at step {point['step']:,}")


def run_trial(
    study: SearchStudy,
    claim: Claim,
    settings: SearchSettings,
    objective: SearchObjective,
    options: RunOptions,
    command: str,
) -> TrialOutcome:
    """Train a trial from its last checkpoint to the end, and measure the objective.

    Args:
        study: Study of the search.
        claim: The trial.
        settings: Settings of the search.
        objective: Objective of the search.
        options: How to execute the run.
        command: Shell command of the search, for `experiment.json`.

    Raises:
        UserError: If the objective cannot be measured.
        RunError: If the run cannot be written.
        Interrupted: After Ctrl-C. The run can be resumed.
    """
    try:
        _create_run(claim, settings, options, command)
        stopped = _train(study, claim, settings, options)
    except Diverged as error:
        return TrialOutcome(state="diverged", reason=str(error))
    except UserError as error:
        return TrialOutcome(state="invalid", reason=str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return TrialOutcome(state="failed", reason="out of memory")
    finally:
        # An engine and its compiled steps refer to each other. The next trial needs their memory.
        gc.collect()
    return stopped or _measure(claim, objective, settings.fid, options)


def trial_experiment(settings: SearchSettings, claim: Claim) -> Experiment:
    """Return the experiment of a trial.

    Args:
        settings: Settings of the search.
        claim: The trial.

    Raises:
        UserError: If the values do not fit together.
    """
    chosen = override(settings.experiment, make_assignments(claim.settings))
    label = describe_values(claim.settings)
    name = f"{settings.experiment.name} ({label})"
    return replace(chosen, name=name, about=f"{label}, in a search over {settings.source}")


def _create_run(claim: Claim, settings: SearchSettings, options: RunOptions, command: str) -> None:
    """Create the folder of a trial unless an earlier worker did."""
    folder, experiment = claim.run, trial_experiment(settings, claim)
    if options.task is not None:
        remember_task(folder.path, options.task)
    try:
        if not folder.experiment_file.is_file():
            folder.create(experiment, command, code=options.code)
        elif folder.experiment() != experiment:
            raise UserError(f"{folder.path} holds a run with other settings; delete it")
    except OSError as error:
        raise RunError(f"cannot create {folder.path}: {error.strerror}") from None


def _train(
    study: SearchStudy, claim: Claim, settings: SearchSettings, options: RunOptions
) -> TrialOutcome | None:
    """Train a run. Return None if it is complete and can be measured."""
    folder = claim.run
    if folder.has_ended():
        if folder.events()[-1]["event"] == "diverged":
            return TrialOutcome(state="diverged", reason="the loss diverged")
        return None  # its worker ended while it was evaluated
    callbacks: tuple[Any, ...] = options.callbacks
    if settings.prune in CURVES:
        callbacks += (_Pruner(study, claim, settings.prune),)
    try:
        result = resume_runs(
            [folder], replace(options, callbacks=callbacks), "the same command", withdraw=True
        )
    except RunError as error:
        if isinstance(error.__cause__, _Prune):
            return TrialOutcome(state="pruned", reason=str(error.__cause__))
        if isinstance(error.__cause__, LostClaimError):
            return TrialOutcome()
        raise
    return None if result is None or result.finished else TrialOutcome()


def _measure(
    claim: Claim, objective: SearchObjective, fid: int | None, options: RunOptions
) -> TrialOutcome:
    """Measure the objective of a trained run."""
    folder: RunFolder = claim.run
    if objective.function is not None:
        run = load_run(folder, root=options.data_root, device=options.device)
        value: float | None = float(objective.function(run))
    else:
        if not objective.is_curve:
            evaluate_cached(
                folder, options.device, options.data_root, _Quiet(options.display), fid=fid
            )
        value = objective.read(folder)
    if value is None or not math.isfinite(value):
        return TrialOutcome(state="diverged", reason=f"{objective.name} is not finite")
    return TrialOutcome(value=value, state="finished")


class _Quiet(TrialDisplay):
    """Display of an evaluation: its bar and no messages."""

    def note(self, line: str) -> None:
        """Show nothing."""
