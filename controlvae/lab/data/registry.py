"""Registry of data sets: loads the data of an experiment and describes what each set needs.

A data set is one module with its reader and a list `SPECS`. It may define its own settings, a
frozen dataclass derived from one of the base classes in `controlvae.lab.config.data`. To add a data
set, write such a module and add its name to `READER_MODULES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.config import CustomData, DataSettings
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.paths import data_roots

READER_MODULES = (
    "controlvae.lab.data.dsprites",
    "controlvae.lab.data.shapes3d",
    "controlvae.lab.data.cifar10",
    "controlvae.lab.data.celeba",
    "controlvae.lab.data.images.user_images",
    "controlvae.lab.data.text.grammar",
    "controlvae.lab.data.text.penn_treebank",
    "controlvae.lab.data.text.text_file",
    "controlvae.lab.data.text.synthetic_dialog",
    "controlvae.lab.data.text.switchboard",
    "controlvae.lab.data.text.dialog_file",
)


@dataclass(frozen=True)
class DatasetSpec:
    """One kind of data.

    Attributes:
        name: The name in `controlvae data`.
        settings: The settings class.
        load: Loads the data of given settings, from a data folder if there is one.
        about: One line that describes the data.
        needs: The files it needs and where to get them.
        describe_files: Describes which of these files are in the data folders.
        test_settings: Returns the settings of the test set for given training settings, or None if
            there is none. A generated test set may be smaller than the training set.
        validation_settings: Returns the settings of the data set's published validation split for
            given training settings, or None if there is none.
    """

    name: str
    settings: type
    load: Callable[[Any, Path | None], Dataset]
    about: str
    needs: str = "no files"
    describe_files: Callable[[Path | None], str] = lambda root: "generated when needed: no file"
    test_settings: Callable[[Any, Path | None], Any] = lambda settings, root: None
    validation_settings: Callable[[Any], Any] = lambda settings: None


class DatasetInfo(NamedTuple):
    """Human-readable description of a data set and its files."""

    name: str
    about: str
    needs: str
    looked_in: list[Path]
    found: str


@cache
def dataset_specs() -> dict[str, DatasetSpec]:
    """Return all data sets by name. Imports their modules on first use."""
    modules = [import_module(name) for name in READER_MODULES]
    return {spec.name: spec for module in modules for spec in module.SPECS}


def load_dataset(settings: DataSettings, root: Path | None = None) -> Dataset:
    """Load the data that the settings describe, on the host.

    Args:
        settings: The `data` of an experiment.
        root: A folder to search before the usual ones.
    """
    return _find_spec(settings).load(settings, root)


def held_out_settings(settings: DataSettings, root: Path | None = None) -> DataSettings | None:
    """Return the settings of the test set that belongs to training settings.

    Returns:
        None if there is no test set, or if `settings` are those of the test set.
    """
    if not _is_training_split(settings):
        return None
    test: DataSettings | None = _find_spec(settings).test_settings(settings, root)
    return test


def validation_settings(settings: DataSettings) -> DataSettings | None:
    """Return the settings of the published validation split, or None if there is none."""
    if not _is_training_split(settings):
        return None
    validation: DataSettings | None = _find_spec(settings).validation_settings(settings)
    return validation


def describe_dataset(name: str, root: Path | None = None) -> DatasetInfo:
    """Return what a data set needs and which of its files exist.

    Raises:
        UserError: There is no such data set.
    """
    specs = dataset_specs()
    if name not in specs:
        raise unknown_name_error("data set", name, specs)
    spec = specs[name]
    return DatasetInfo(name, spec.about, spec.needs, data_roots(root), spec.describe_files(root))


def describe_setting_path(root: Path | None) -> str:
    """Return the `describe_files` text of data sets whose settings give the path."""
    return "named by the setting itself: no file"


def _find_spec(settings: DataSettings) -> DatasetSpec:
    if isinstance(settings, CustomData):
        raise UserError(
            f"this data was passed from Python and cannot be loaded again: {settings.source}"
        )
    specs = dataset_specs().values()
    return next(spec for spec in specs if spec.settings is type(settings))


def _is_training_split(settings: DataSettings) -> bool:
    return getattr(settings, "split", None) == "train"
