"""From the data settings of an experiment to its examples; and what each data set needs and found."""

from pathlib import Path
from typing import NamedTuple

from controlvae.errors import unknown_name_error
from controlvae.lab.config import DataSettings
from controlvae.lab.data import celeba, cifar10
from controlvae.lab.data import dsprites as shapes2d
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.images import user_images as images
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.text import grammar, switchboard
from controlvae.lab.data.text import sentences as text
from controlvae.lab.data.text import synthetic_dialog as small_talk

_SOURCES = (
    shapes2d.SOURCE,
    cifar10.SOURCE,
    celeba.SOURCE,
    images.SOURCE,
    grammar.SOURCE,
    text.PTB,
    text.FILE,
    small_talk.SOURCE,
    switchboard.SOURCE,
    switchboard.FILE,
)
DATASETS = {source.name: source for source in _SOURCES}
_BY_SETTINGS = {source.settings: source for source in _SOURCES}


def load_dataset(settings: DataSettings, root: Path | None = None) -> Dataset:
    """The examples an experiment asks for, on the host."""
    return _BY_SETTINGS[type(settings)].load(settings, root)


def held_out_settings(settings: DataSettings, root: Path | None = None) -> DataSettings | None:
    """The test part of the same data; None where there is none, or where it is what a run trains on."""
    found: DataSettings | None = (
        _BY_SETTINGS[type(settings)].test(settings, root) if _trains(settings) else None
    )
    return found


def validation_settings(settings: DataSettings) -> DataSettings | None:
    """The part that a data set itself sets aside for validation; None where it has none."""
    found: DataSettings | None = (
        _BY_SETTINGS[type(settings)].validation(settings) if _trains(settings) else None
    )
    return found


def _trains(settings: DataSettings) -> bool:
    """Whether they are of the part to train on; `part` is of what a share held out divides, `split` as published."""
    return getattr(settings, "split", None) == "train"


class DatasetInfo(NamedTuple):
    """What a data set needs and what of it is there, for people."""

    name: str
    about: str
    needs: str
    looked_in: list[Path]
    found: str


def describe_dataset(name: str, root: Path | None = None) -> DatasetInfo:
    """A data set by name."""
    if name not in DATASETS:
        raise unknown_name_error("data set", name, DATASETS)
    source = DATASETS[name]
    return DatasetInfo(name, source.about, source.needs, data_roots(root), source.found(root))
