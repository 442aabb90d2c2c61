"""The study of a search: its trials, and their claims by workers."""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.search_records import State, TrialRecord, best_of
from controlvae.lab.cluster.search_settings import JOURNAL_FILE, Better
from controlvae.lab.cluster.search_space import Dimension, Value
from controlvae.lab.cluster.search_workers import WorkerWatch
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training

_MAX_ATTEMPTS = 3  # lost workers per trial: its settings may be what ends them


class LostClaimError(Exception):
    """Trial that another worker has taken over, because this one was silent for too long."""


@dataclass(frozen=True)
class Claim:
    """Trial that this worker has to train."""

    number: int
    settings: dict[str, Value]
    run: RunFolder
    trial: Any = field(repr=False)  # Optuna's
    attempts: int = 1


class SearchStudy:
    """Trials in the journal of a search, which several workers read and append to.

    Optuna's journal orders all claims: of two workers that claim one trial, the second is refused.

    Args:
        path: Folder of the search.
        better: Direction of the objective.
        space: Search space. Empty for a study that is only read.
        seed: Seed of the sampler.
        steps: Steps of a trial.
    """

    def __init__(
        self,
        path: Path,
        better: Better,
        space: Mapping[str, Dimension] | None = None,
        seed: int = 0,
        steps: int = 0,
    ) -> None:
        self._journal = import_journal()
        self.path, self.better = path, better
        opened = self._journal.open_journal(path / JOURNAL_FILE, better, seed, steps)
        self._study, self._storage = opened
        self._distributions = self._journal.make_distributions(dict(space or {}))

    def records(self) -> list[TrialRecord]:
        """Return all trials, by number. A resumed trial keeps its first number."""
        latest: dict[str, TrialRecord] = {}
        for _, record in self._entries():
            if record.state != "withdrawn":
                latest[record.run.path.name] = record
        return sorted(latest.values(), key=lambda record: record.number)

    def best(self) -> TrialRecord | None:
        """Return the finished trial with the best value, the first one of equals."""
        return best_of(self.records(), self.better)

    def importances(self) -> dict[str, float]:
        """Return the importance of each setting. Empty with too few finished trials."""
        found: dict[str, float] = self._journal.measure_importances(self._study)
        return found

    def claim(self, trials: int, worker: str) -> Claim | None:
        """Claim a waiting trial, or else a new one. Return None if neither is left.

        Args:
            trials: Number of trials of the whole search.
            worker: Name of this worker.
        """
        records = self.records()
        if len(records) >= trials and all(record.state != "waiting" for record in records):
            return None
        trial = self._study.ask(self._distributions)
        trial.set_user_attr("worker", worker)
        own = self._entries()[trial.number][1]
        if self._is_surplus(trial.number, own, trials):
            # Another worker was faster between the count and the claim.
            self._tell(trial.number, "FAIL", withdrawn=True)
            return None
        return Claim(own.number, own.settings, own.run, trial, own.attempts)

    def finish(self, claim: Claim, value: float) -> bool:
        """Record the value of a trial. Return False if another worker has taken it over."""
        return self._tell(claim.trial.number, "COMPLETE", value=value)

    def end(self, claim: Claim, state: State, reason: str) -> bool:
        """Record that a trial ended without a value. The sampler will avoid its settings.

        Args:
            claim: The trial.
            state: How it ended.
            reason: Why, in words.
        """
        return self._tell(claim.trial.number, "PRUNED", outcome=state, reason=reason)

    def release(self, claim: Claim) -> None:
        """Give a trial back, so that the next free worker resumes its run."""
        if self._tell(claim.trial.number, "FAIL"):
            self._enqueue(claim.trial.number, claim.attempts)

    def release_all(self, worker: str) -> None:
        """Give back every trial that a worker has.

        Args:
            worker: Name of the worker.
        """
        for trial, record in self._entries():
            if record.state != "running" or record.worker != worker:
                continue
            if self._tell(trial.number, "FAIL", withdrawn=not record.settings):
                self._enqueue(trial.number, record.attempts)

    def requeue_lost(self, watch: WorkerWatch, worker: str) -> list[TrialRecord]:
        """Let trials wait whose workers are gone, and return them.

        A run that is locked by a process is in training, whatever else is known about its worker.
        A trial that has lost several workers has failed.

        Args:
            watch: Observer of the other workers.
            worker: Name of this worker.
        """
        running, failed = self._journal.TrialState.RUNNING, self._journal.TrialState.FAIL
        found = []
        for trial, record in self._entries():
            if trial.state == running:
                name = record.worker or f"trial {trial.number}"
                if record.worker == worker or not watch.is_lost(name) or in_training(record.run):
                    continue
                if not record.settings:  # killed before it had any: a new trial takes its place
                    self._tell(trial.number, "FAIL", withdrawn=True)
                elif record.attempts >= _MAX_ATTEMPTS:
                    self._tell(
                        trial.number,
                        "PRUNED",
                        outcome="failed",
                        reason=f"{record.attempts} workers ended while they had it",
                    )
                elif self._tell(trial.number, "FAIL"):
                    self._enqueue(trial.number, record.attempts + 1)
                    found.append(record)
                watch.forget(name)
            elif (
                trial.state == failed
                and record.state == "waiting"
                and not self._is_resumed(trial.number)
            ):
                # A worker was killed between the two entries.
                self._enqueue(trial.number, record.attempts + 1)
        return found

    def report(self, claim: Claim, step: int, value: float) -> bool:
        """Record a point of the validation curve. Return whether to prune the trial.

        Args:
            claim: The trial.
            step: Training step.
            value: Value whose better direction is that of the objective.

        Raises:
            LostClaimError: If another worker has taken the trial over.
        """
        try:
            claim.trial.report(value, step)
        except RuntimeError as error:  # the trial has ended for Optuna
            raise LostClaimError from error
        return bool(claim.trial.should_prune())

    def _entries(self) -> list[tuple[Any, TrialRecord]]:
        """Return all entries of the journal with their records. A resumed trial has several."""
        entries, count = [], 0
        for trial in self._study.get_trials(deepcopy=False):
            number = trial.user_attrs.get("number", count)
            count += "number" not in trial.user_attrs
            entries.append((trial, self._as_record(trial, number)))
        return entries

    def _as_record(self, trial: Any, number: int) -> TrialRecord:
        attributes, states = trial.user_attrs, self._journal.TrialState
        state: State
        match trial.state:
            case states.COMPLETE:
                state = "finished" if math.isfinite(trial.value) else "diverged"
            case states.PRUNED:
                state = attributes.get("outcome", "pruned")
            case states.RUNNING:
                state = "running"
            case _:
                state = "withdrawn" if attributes.get("withdrawn") else "waiting"
        began, ended = trial.datetime_start, trial.datetime_complete
        seconds = (ended - began).total_seconds() if began and ended else None
        return TrialRecord(
            number,
            state,
            dict(trial.params) or dict(trial.system_attrs.get("fixed_params", {})),
            trial.value if state == "finished" else None,
            RunFolder(self.path / f"trial-{number:03d}"),
            reason=attributes.get("reason", ""),
            worker=attributes.get("worker", ""),
            attempts=attributes.get("attempts", 1),
            seconds=seconds,
        )

    def _is_resumed(self, entry: int) -> bool:
        """Return whether another entry resumes an entry."""
        entries = self._study.get_trials(deepcopy=False)
        return any(other.user_attrs.get("resumes") == entry for other in entries)

    def _is_surplus(self, entry: int, own: TrialRecord, trials: int) -> bool:
        """Return True for a trial beyond the number of trials, or one that is claimed already."""
        entries = self._entries()
        before, resumed = entries[:entry], entries[entry][0].user_attrs.get("resumes")
        if resumed is not None:
            return any(
                other.user_attrs.get("resumes") == resumed and record.state != "withdrawn"
                for other, record in before
            )
        known = {record.number for _, record in before if record.state != "withdrawn"}
        return len(known - {own.number}) >= trials

    def _enqueue(self, entry: int, attempts: int) -> None:
        record = self._entries()[entry][1]
        if not record.settings:
            return
        names = {"number": record.number, "resumes": entry, "attempts": attempts}
        self._study.enqueue_trial(record.settings, user_attrs=names)

    def _tell(self, entry: int, state: str, value: float | None = None, **notes: Any) -> bool:
        """Set the state of an entry. Return False if another worker has done so before."""
        # `Study.tell` takes no notes, and they must be there when the state is.
        storage, entries = self._storage, self._study.get_trials(deepcopy=False)
        trial_id = entries[entry]._trial_id
        try:
            for key, note in notes.items():
                storage.set_trial_user_attr(trial_id, key, note)
            states, values = self._journal.TrialState, None if value is None else [value]
            return bool(storage.set_trial_state_values(trial_id, getattr(states, state), values))
        except (RuntimeError, ValueError):  # Optuna's own is a RuntimeError
            return False


def import_journal() -> Any:
    """Return the module that uses Optuna.

    Raises:
        UserError: If Optuna is not installed.
    """
    try:
        return importlib.import_module("controlvae.lab.cluster.search_journal")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "optuna":
            raise
        raise UserError("a search needs Optuna: pip install 'controlvae[search]'") from None
