"""Repairs of a run: what went wrong, what was changed, and the settings from then on.

`repairs.json` lies next to `experiment.json`, which keeps the settings of the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config.digest import config_digest
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.serialization import from_dict, to_dict
from controlvae.lab.io import write_json
from controlvae.lab.runs.records import is_finite, read_json_object

REPAIRS_FILE = "repairs.json"
KILLED = "killed"  # symptom of a process that ended by a signal; nothing is changed
_ADVICE = "restore it, or delete it to continue with the settings of experiment.json"
_TEXTS = ("time", "symptom", "evidence", "remedy")


@dataclass(frozen=True)
class RepairRecord:
    """One repair of a run.

    Attributes:
        time: Time of day, ISO 8601.
        step: Step that the run was taken back to. 0 is its start.
        found_at: Step at which the symptom was found.
        symptom: Name of the symptom, such as "burst".
        evidence: What was measured.
        remedy: What was changed.
        changed: Paths of the settings that were changed, such as `optimiser.rate`.
        experiment: All settings from then on, or None if nothing was changed.
    """

    time: str
    step: int
    found_at: int
    symptom: str
    evidence: str
    remedy: str
    changed: tuple[str, ...] = ()
    experiment: dict[str, Any] | None = None

    def __str__(self) -> str:
        back = "its start" if self.step == 0 else f"step {self.step:,}"
        verb = "resumed from" if self.symptom == KILLED else "taken back to"
        return (
            f"{self.symptom} found at step {self.found_at:,} ({self.evidence}); {verb} {back}; "
            f"{self.remedy}"
        )


def read_repairs(folder: Path) -> list[RepairRecord]:
    """Return the repairs of a run, oldest first.

    Raises:
        UserError: If their file is corrupt.
    """
    path = folder / REPAIRS_FILE
    if not path.is_file():
        return []
    content = read_json_object(path, _ADVICE)
    entries = content.get("repairs")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise UserError(f"{path} is corrupt (its repairs are no valid list); {_ADVICE}")
    return [RepairRecord(**{**entry, "changed": tuple(entry["changed"])}) for entry in entries]


def write_repairs(folder: Path, repairs: Sequence[RepairRecord]) -> None:
    """Write the repairs of a run, all at once.

    Args:
        folder: Path of the run folder.
        repairs: All repairs, oldest first.
    """
    write_json(folder / REPAIRS_FILE, {"format": 1, "repairs": [asdict(one) for one in repairs]})


def repaired_experiment(folder: Path, start: Experiment) -> Experiment:
    """Return the settings of a run after its repairs.

    Args:
        folder: Path of the run folder.
        start: Settings that the run was started with.

    Raises:
        UserError: If the file of the repairs is corrupt.
    """
    stages = [one.experiment for one in read_repairs(folder) if one.experiment is not None]
    if not stages:
        return start
    try:
        return from_dict(Experiment, stages[-1])
    except UserError as error:
        raise UserError(f"{folder / REPAIRS_FILE}: {error}; {_ADVICE}") from None


def accepted_digests(folder: Path, start: Experiment) -> set[str]:
    """Return the digests of settings under which checkpoints of a run were written.

    Args:
        folder: Path of the run folder.
        start: Settings that the run was started with.
    """
    stages = [one.experiment for one in read_repairs(folder) if one.experiment is not None]
    return {config_digest(one) for one in (start, *(from_dict(Experiment, s) for s in stages))}


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return settings as a record stores them."""
    plain: dict[str, Any] = to_dict(experiment)
    return plain


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or set(entry) != set(RepairRecord.__dataclass_fields__):
        return False
    steps = all(is_finite(entry[name]) and entry[name] >= 0 for name in ("step", "found_at"))
    texts = all(isinstance(entry[name], str) for name in _TEXTS)
    changed = isinstance(entry["changed"], list)
    paths = changed and all(isinstance(path, str) for path in entry["changed"])
    return steps and texts and paths and isinstance(entry["experiment"], dict | None)
