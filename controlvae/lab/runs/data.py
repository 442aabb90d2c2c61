"""Data of a finished run: found from any working directory, or what the run folder kept of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import FactorsError, UserError
from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.reading import READ_ERRORS, read_text
from controlvae.lab.runs.folder import RunFolder

_DATA_KINDS: dict[type, type[SentenceDataset] | type[DialogDataset]] = {
    TextVAEConfig: SentenceDataset,
    DialogVAEConfig: DialogDataset,
}


class MissingDataWarning(UserWarning):
    """A run was loaded without its data."""


class RunData(NamedTuple):
    """Training data of a run."""

    examples: Dataset
    changed: bool  # since training started
    root: Path | None  # data folder in which it was found


def load_run_data(
    folder: RunFolder, experiment: Experiment, fingerprint: str, root: Path | None
) -> RunData:
    """Load the data a run was trained on.

    If it is missing, the examples are empty, with the vocabulary or image shape that the run folder
    kept, and their `source` gives the reason.

    Args:
        folder: Run folder.
        experiment: Experiment of the run.
        fingerprint: Fingerprint of the data at training time. Empty if unknown.
        root: Data folder that is searched first.

    Raises:
        FactorsError: If the table of factors is missing.
        UserError: If the data is missing and the folder kept nothing of it.
    """
    try:
        examples = load_dataset(experiment.data, root)
        changed = fingerprint not in ("", examples.fingerprint())
        if changed and isinstance(examples, SentenceDataset | DialogDataset):
            raise UserError(
                f"the text of {folder.path} has changed since training started; "
                "its token ids no longer match the vocabulary"
            )
    except FactorsError:  # the images themselves were found
        raise
    except UserError as error:
        found = _load_near(folder, experiment, fingerprint)
        return found or _load_metadata(folder, experiment, error, root)
    return RunData(examples, changed, root)


def _load_near(folder: RunFolder, experiment: Experiment, fingerprint: str) -> RunData | None:
    """Look for the data next to the run folder and its parents, and verify the fingerprint.

    Relative paths are stored as typed. The directory they were typed in is usually a parent of the
    run folder.
    """
    if not fingerprint:
        return None
    for root in _nearby_roots(folder.path):
        try:
            examples = load_dataset(experiment.data, root)
        except UserError:
            continue
        if examples.fingerprint() == fingerprint:
            return RunData(examples, False, root)
    return None


def _nearby_roots(path: Path) -> Iterator[Path]:
    for parent in path.resolve().parents:
        yield parent
        if (parent / "data").is_dir():
            yield parent / "data"


def _load_metadata(
    folder: RunFolder, experiment: Experiment, error: UserError, root: Path | None
) -> RunData:
    """Return empty examples with what the run folder kept, or raise the error."""
    reason = str(error)
    if hasattr(experiment.data, "path") and reason.startswith("no file or folder"):
        # The advice of training commands names options that other commands lack.
        reason = f"{reason.partition(';')[0]}; give the folder that contains it with --data-root"
    kind = _DATA_KINDS.get(type(experiment.model), ImageDataset)
    file = folder.path / kind.metadata_file
    if not file.is_file():
        raise UserError(reason) from None
    try:
        examples = kind.from_metadata(read_text(file), reason)
    except READ_ERRORS as problem:
        raise UserError(f"{file} cannot be read: {problem}; and {reason}") from None
    return RunData(examples, False, root)
