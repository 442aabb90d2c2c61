"""Trials of a search, as they are shown."""

from dataclasses import dataclass
from typing import Literal

from controlvae.lab.cluster.search_settings import Better
from controlvae.lab.cluster.search_space import Value
from controlvae.lab.runs.folder import RunFolder

# "waiting" trials have lost their worker, and the next free worker resumes them.
State = Literal[
    "finished", "pruned", "diverged", "invalid", "failed", "running", "waiting", "withdrawn"
]
ENDED = ("finished", "pruned", "diverged", "invalid", "failed")


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search.

    Attributes:
        number: Number of the trial, which names its run folder.
        state: How far it is, or how it ended.
        settings: Values of the varied settings.
        value: Value of the objective, or None.
        run: Run folder.
        reason: Why the trial ended without a value.
        worker: Worker that has it.
        attempts: Workers that have had it. Stops by the user do not count.
        seconds: Time from the last claim to the end, or None.
    """

    number: int
    state: State
    settings: dict[str, Value]
    value: float | None
    run: RunFolder
    reason: str = ""
    worker: str = ""
    attempts: int = 1
    seconds: float | None = None


def best_of(records: list[TrialRecord], better: Better) -> TrialRecord | None:
    """Return the finished trial with the best value, the first one of equals."""
    finished = [record for record in records if record.value is not None]
    if not finished:
        return None
    sign = -1 if better == "higher" else 1
    return min(finished, key=lambda record: sign * record.value)  # type: ignore[operator]
