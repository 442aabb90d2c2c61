"""From the data settings of an experiment to its examples; and what each data set needs and found."""

from pathlib import Path
from typing import NamedTuple

from controlvae.data.examples import Examples
from controlvae.data.roots import data_roots, find_file
from controlvae.data.shapes2d import ORIGINAL, ORIGINAL_PLACES
from controlvae.errors import unknown
from controlvae.experiments import Shapes2D


def load(settings: Shapes2D, root: Path | None = None) -> Examples:
    """The examples an experiment asks for, on the host."""
    match settings:
        case Shapes2D():
            from controlvae.data import shapes2d

            return shapes2d.load(settings, root)
    raise TypeError(f"no loader for {settings!r}")


class Source(NamedTuple):
    """What a data set needs and what of it is there."""

    name: str
    about: str
    needs: str
    looked_in: list[Path]
    found: Path | None


def describe(name: str, root: Path | None = None) -> Source:
    """A data set by name, for people."""
    if name not in DATA_SETS:
        raise unknown("data set", name, DATA_SETS)
    about, needs, files = DATA_SETS[name]
    return Source(name, about, needs, data_roots(root), find_file(files, root))


DATA_SETS: dict[str, tuple[str, str, list[str]]] = {
    "shapes2d": (
        "2D Shapes (dSprites): 737,280 binary 64x64 pictures; factors shape 3, scale 6, orientation 40, x 32, y 32",
        f"no files: rendered from the factors. Used instead where present: {ORIGINAL} (26 MB, "
        f"github.com/google-deepmind/dsprites-dataset)",
        ORIGINAL_PLACES,
    ),
}
