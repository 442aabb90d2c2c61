"""Matching of the rows of a factor table to images by the images' names."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.data.factor_tables import FILE_COLUMN, is_numeric_text
from controlvae.lab.data.images.decoding import SUFFIXES

# Other headings that columns of image names have.
_NAME_HEADINGS = (
    "id",
    "image",
    "image_id",
    "picture",
    "name",
    "filename",
    "file_name",
    "path",
)


def find_name_column(columns: Mapping[str, np.ndarray], files: Sequence[str]) -> str:
    """Return the column whose cells are mostly names of images, or "file" if there is none.

    Numbers may also be a factor. They count as names only if they name every image and the
    heading says so.
    """
    for name, column in columns.items():
        cells = column.tolist()
        matches = max(_count_matches(cells, files, normalize) for normalize in _NORMALIZERS)
        if all(map(is_numeric_text, cells)):
            is_name_column = name.lower() in _NAME_HEADINGS and matches == len(cells) == len(files)
        else:
            is_name_column = 2 * matches > len(cells)
        if is_name_column:
            return name
    return FILE_COLUMN


def match_rows(
    row_names: list[str], files: Sequence[str] | None, path: Path, heading: str
) -> np.ndarray:
    """Return for each image the index of the row that names it.

    Args:
        row_names: The image name of each row.
        files: The names of the images, or None if they have none.
        path: The table, for error messages.
        heading: The name of the column, for error messages.

    Raises:
        UserError: Rows and images do not match one to one.
    """
    if files is None:
        raise UserError(
            f"{path} names files, but its images have no file names; "
            f"remove the column {FILE_COLUMN!r}"
        )
    # The first of equally good ways to compare names.
    normalize = max(_NORMALIZERS, key=lambda each: _count_matches(row_names, files, each))
    rows = {normalize(name): row for row, name in enumerate(row_names)}
    if len(rows) != len(row_names):
        duplicates = len(row_names) - len(rows)
        raise UserError(f"{path} names {duplicates:,} images twice under {heading!r}")
    known = [normalize(name) for name in files]
    if row_names and not rows.keys() & set(known):
        raise UserError(
            f"{path} names images like {row_names[0]!r}, but no image has such a name; "
            f"their names are like {files[0]!r}"
        )
    for subject, missing, remedy in (
        ("a row for", set(known) - rows.keys(), "add it, or remove the image"),
        ("the image of", rows.keys() - set(known), "remove its row"),
    ):
        if missing:
            more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
            raise UserError(
                f"{path}, by its column {heading!r}: "
                f"{subject} {min(missing)}{more} is missing; {remedy}"
            )
    return np.array([rows[name] for name in known])


def check_order_is_unambiguous(files: Sequence[str], path: Path) -> None:
    """Raise UserError if names sort differently as text and by the numbers in them.

    A table without names would then be ambiguous: image-10 comes before image-2 as text.
    """
    digits = re.compile(r"(?<![.0-9])[0-9]+")
    by_number = sorted(files, key=lambda name: digits.sub(lambda found: found[0].zfill(30), name))
    for row, (name, other) in enumerate(zip(files, by_number, strict=True), start=1):
        if name != other:
            raise UserError(
                f"{path}: row {row} is about {name} if files are sorted as text, "
                f"and about {other} if they are sorted by number; "
                f"add a column {FILE_COLUMN!r} with the name of each image"
            )


def _full_name(name: str) -> str:
    # With slashes, and accents as single characters, which some file systems decompose.
    return unicodedata.normalize("NFC", name.replace("\\", "/").removeprefix("./"))


def _base_name(name: str) -> str:
    return _full_name(name).rpartition("/")[2]


def _without_suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix}".lower() in SUFFIXES else name


# Ways in which a table may name images: as in the folder, without the suffix, without the folder,
# or without either.
_NORMALIZERS: tuple[Callable[[str], str], ...] = (
    _full_name,
    lambda name: _without_suffix(_full_name(name)),
    _base_name,
    lambda name: _without_suffix(_base_name(name)),
)


def _count_matches(
    row_names: Sequence[str], files: Sequence[str], normalize: Callable[[str], str]
) -> int:
    """Count the images that both name. Zero if the normalized names are not unique."""
    known = {normalize(name) for name in files}
    return len(known.intersection(map(normalize, row_names))) if len(known) == len(files) else 0
