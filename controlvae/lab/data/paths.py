"""Lookup of data files in `--data-root`, `$CONTROLVAE_DATA` and `./data`, in this order."""

import contextlib
import os
from pathlib import Path

from controlvae.errors import UserError
from controlvae.lab.data.huggingface import is_datasets_folder, open_datasets_folder

_SUFFIXES_WITH_MEMBERS = (".npz", ".csv", ".tsv")


def data_roots(root: Path | None = None) -> list[Path]:
    """Return the folders to search, in order.

    Args:
        root: The value of `--data-root`, if any.

    Raises:
        UserError: `root` is not a folder.
    """
    if root is not None and not root.is_dir():
        raise UserError(f"--data-root {root} is not a folder")
    from_environment = os.environ.get("CONTROLVAE_DATA")
    roots = [root, Path(from_environment) if from_environment else None, Path("data")]
    return [each for each in roots if each is not None]


def find_file(names: list[str], root: Path | None = None) -> Path | None:
    """Return the first of these relative paths that exists in a data folder, or None."""
    for folder in data_roots(root):
        for name in names:
            if (folder / name).is_file():
                return folder / name
    return None


def resolve_path(
    text: str,
    root: Path | None,
    extra_root: Path | None = None,
    advice: str = "name the folder it is in with --data-root",
) -> tuple[Path, str | None]:
    """Resolve `path[:member]` against the working directory, the data roots and `extra_root`.

    Args:
        text: A path, optionally followed by a member: an array (`images.npz:imgs`) or columns
            (`factors.csv:shape,scale`, `folder:column`).
        root: The value of `--data-root`, if any.
        extra_root: A folder to search last.
        advice: What the user should do if there is no such file.

    Returns:
        The path that exists, and the member or None.

    Raises:
        UserError: There is no such file or folder.
    """
    roots = data_roots(root)
    extra = [extra_root] if extra_root else []
    before_colon, _, member = text.rpartition(":")
    candidates = ((text, None), (before_colon, member)) if before_colon else ((text, None),)
    for name, selected in candidates:
        path = Path(name)
        with contextlib.suppress(RuntimeError):  # `~name` without a user of that name
            path = path.expanduser()
        for place in [path, *(folder / path for folder in [*roots, *extra])]:
            if place.exists() and (selected is None or _has_members(place)):
                return place, selected
    places = ", ".join(map(str, roots))
    raise UserError(f"no file or folder {text!r} here, nor in {places}; {advice}")


def has_test_split(path: str, root: Path | None) -> bool:
    """Return whether a path is a folder of `datasets` that has a test split."""
    place, _ = resolve_path(path, root)
    return is_datasets_folder(place) and open_datasets_folder(place).has_test_split


def _has_members(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES_WITH_MEMBERS or is_datasets_folder(path)
