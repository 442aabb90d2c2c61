"""A data set to the rest of the package: its settings, how it is read, what it sets aside, what it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.lab.data.dataset import Dataset


def named_by_setting(root: Path | None) -> str:
    """`found` of what its settings give the path of."""
    return "named by the setting itself: no file"


@dataclass(frozen=True)
class Source:
    """One kind of data. Each module of this room that reads some has its own; `data/load.py` lists them."""

    name: str
    settings: type  # a class of `experiments.data`
    load: Callable[[Any, Path | None], Dataset]  # of its settings and a data folder
    about: str
    needs: str = "no files"
    found: Callable[[Path | None], str] = lambda root: (
        "drawn when it is needed: no file"
    )  # in a data folder
    # Of settings that train: those of the test part, all of it or as much as is worth it, and of the part that the data
    # itself sets aside for validation; None where there is none.
    test: Callable[[Any, Path | None], Any] = lambda settings, root: None
    validation: Callable[[Any], Any] = lambda settings: None
