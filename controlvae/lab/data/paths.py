"""Where data files are looked for: `--data-root`, `$CONTROLVAE_DATA`, then `./data`."""

import contextlib
import os
from pathlib import Path

from controlvae.errors import UserError
from controlvae.lab.data.huggingface import is_copy, open_copy

_WITH_PARTS = (".npz", ".csv", ".tsv")


def data_roots(given: Path | None = None) -> list[Path]:
    """The folders to look in, in order. A folder that was asked for by name must be there."""
    if given is not None and not given.is_dir():
        raise UserError(f"--data-root {given} is not a folder")
    from_environment = os.environ.get("CONTROLVAE_DATA")
    roots = [given, Path(from_environment) if from_environment else None, Path("data")]
    return [root for root in roots if root is not None]


def find_file(names: list[str], given: Path | None = None) -> Path | None:
    """The first of these relative paths that exists in a data folder."""
    for root in data_roots(given):
        for name in names:
            if (root / name).is_file():
                return root / name
    return None


def resolve_path(
    text: str,
    root: Path | None,
    beside: Path | None = None,
    advice: str = "name the folder it is in by --data-root",
) -> tuple[Path, str | None]:
    """A path as it is given, else in a data folder, else in the one `beside`; and what of it `path:name` names.

    An array of `pictures.npz:imgs`, columns of `factors.csv:shape,scale` or of a data set of `datasets`.
    """
    roots = data_roots(root)
    whole, _, part = text.rpartition(":")
    for path, name in ((text, None), (whole, part)) if whole else ((text, None),):
        given = Path(path)
        with contextlib.suppress(RuntimeError):  # a name that begins with ~ and is nobody's
            given = given.expanduser()
        for place in [
            given,
            *(folder / given for folder in roots),
            *([beside / given] if beside else []),
        ]:
            if place.exists() and (
                name is None or place.suffix.lower() in _WITH_PARTS or is_copy(place)
            ):
                return place, name
    places = ", ".join(map(str, roots))
    raise UserError(f"no file or folder {text!r} here, nor in {places}; {advice}")


def brings_test(path: str, root: Path | None) -> bool:
    """Whether a path of one's own is a copy of `datasets` that has a test split."""
    place, _ = resolve_path(path, root)
    return is_copy(place) and open_copy(place).parted
