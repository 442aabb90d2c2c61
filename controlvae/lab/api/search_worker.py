"""A worker of a search: claims trials, runs them, and says what happens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from controlvae.errors import Interrupted, UserError
from controlvae.lab.api.search_trial import TrialDisplay, TrialOutcome, run_trial
from controlvae.lab.cluster.search import Claim, SearchStudy
from controlvae.lab.cluster.search_records import ENDED
from controlvae.lab.cluster.search_settings import WORKERS_FOLDER, SearchSettings
from controlvae.lab.cluster.search_space import describe_values
from controlvae.lab.cluster.search_workers import Worker, WorkerWatch
from controlvae.lab.evaluation.search_objective import SearchObjective
from controlvae.lab.training.display import Display
from controlvae.lab.training.runner import RunOptions

_POLL_SECONDS = 1.0  # while other workers have the last trials
_MAX_INVALID = 3  # trials that cannot start, without one that can: the search itself is wrong


def work_on_trials(
    study: SearchStudy,
    settings: SearchSettings,
    objective: SearchObjective,
    trials: int,
    options: RunOptions,
    command: str,
) -> None:
    """Claim and run trials until none is left, or the time limit is reached.

    Args:
        study: Study of the search.
        settings: Settings of the search.
        objective: Objective of the search.
        trials: Number of trials of the whole search.
        options: How to execute the runs.
        command: Shell command of the search, for `experiment.json`.

    Raises:
        Interrupted: After Ctrl-C. The trial of this worker waits for the next one.
        UserError: If the objective cannot be measured, or no trial can start.
    """
    folder, display = study.path / WORKERS_FOLDER, options.display
    deadline, watch = time.monotonic() + options.time_limit, WorkerWatch(folder)
    shown, quiet = _Announcer(study, settings, display), TrialDisplay(display)
    with Worker(folder) as worker, _release_at_end(study, worker.name, shown, trials):
        while (remaining := deadline - time.monotonic()) > 0:
            for lost in study.requeue_lost(watch, worker.name):
                display.note(f"trial {lost.number}: its worker is gone; its run will be resumed")
            claim = study.claim(trials, worker.name)
            if claim is None:
                if not _others_are_running(study):
                    return
                shown.announce_finished()
                shown.announce_waiting()
                time.sleep(min(_POLL_SECONDS, max(0.0, remaining)))
                continue
            shown.announce_start(claim, trials)
            limited = replace(options, time_limit=remaining, display=quiet)
            outcome = run_trial(study, claim, settings, objective, limited, command)
            _record(study, claim, outcome)
            shown.announce_finished()
            _raise_if_nothing_starts(study, outcome)
        shown.announce_stop(trials)


@contextmanager
def _release_at_end(
    study: SearchStudy, worker: str, shown: "_Announcer", trials: int
) -> Iterator[None]:
    """Give back the trial that this worker has, whatever ends it, and report Ctrl-C.

    Args:
        study: Study of the search.
        worker: Name of this worker.
        shown: Messages about the trials.
        trials: Number of trials.
    """
    try:
        yield
    except KeyboardInterrupt:
        study.release_all(worker)
        shown.announce_stop(trials)
        raise Interrupted(shown.describe_stop(trials)) from None
    finally:
        study.release_all(worker)


def _record(study: SearchStudy, claim: Claim, outcome: TrialOutcome) -> None:
    if outcome.state == "waiting":
        study.release(claim)
    elif outcome.value is not None:
        study.finish(claim, outcome.value)
    else:
        study.end(claim, outcome.state, outcome.reason)


def _others_are_running(study: SearchStudy) -> bool:
    return any(record.state in ("running", "waiting") for record in study.records())


def _raise_if_nothing_starts(study: SearchStudy, outcome: TrialOutcome) -> None:
    """Raise UserError if no trial could start so far: the rest would fail for the same reason."""
    states = [record.state for record in study.records() if record.state in ENDED]
    if outcome.state == "invalid" and len(states) >= _MAX_INVALID and {*states} == {"invalid"}:
        raise UserError(f"the first {len(states)} trials could not start: {outcome.reason}")


class _Announcer:
    """Messages about the trials of all workers."""

    def __init__(self, study: SearchStudy, settings: SearchSettings, display: Display) -> None:
        self._study, self._settings, self._display = study, settings, display
        self._known = {r.number for r in study.records() if r.state in ENDED}
        self._waiting = False
        if self._known:
            display.note(f"resuming the search in {study.path}: {len(self._known)} trials done")

    def announce_start(self, claim: Claim, trials: int) -> None:
        """Show which trial starts or resumes."""
        done = sum(record.state in ENDED for record in self._study.records())
        verb = "resumes" if claim.run.experiment_file.is_file() else "starts"
        values = describe_values(claim.settings)
        self._display.note(f"trial {claim.number} {verb} ({done} of {trials} done): {values}")
        self._waiting = False

    def announce_finished(self) -> None:
        """Show the trials that ended since the last call."""
        best = self._study.best()
        for record in self._study.records():
            if record.state not in ENDED or record.number in self._known:
                continue
            self._known.add(record.number)
            if record.value is None:
                text = f"{record.state}: {record.reason}"
            else:
                text = f"{self._settings.objective} {record.value:.5g}"
                text += ", the best so far" if best and best.number == record.number else ""
            self._display.note(f"trial {record.number}: {text}")

    def announce_waiting(self) -> None:
        """Say once that other workers have the last trials."""
        if not self._waiting:
            self._display.note("waiting for the trials of other workers; Ctrl-C leaves them alone")
        self._waiting = True

    def announce_stop(self, trials: int) -> None:
        """Show how far the search is, and how to resume it."""
        self._display.status(self.describe_stop(trials))

    def describe_stop(self, trials: int) -> str:
        """Return a line that says how far the search is, and how to resume it."""
        done = sum(record.state in ENDED for record in self._study.records())
        return f"stopped with {done} of {trials} trials done; resume with: the same command"
