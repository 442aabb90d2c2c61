"""Ground-truth factors of user-supplied images, read from a table and converted to classes."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.data.factor_tables import FILE_COLUMN, is_numeric_text, read_csv, read_numpy
from controlvae.lab.data.image_names import (
    check_order_is_unambiguous,
    find_name_column,
    match_rows,
)
from controlvae.lab.data.images.numpy_files import describe_error
from controlvae.lab.reading import READ_ERRORS
from controlvae.metrics._validation import MISSING_VALUES

# A column with at most this fraction of words is meant to hold numbers.
_MAX_WORD_FRACTION = 0.1
_GAPS_AMONG_NUMBERS = (*MISSING_VALUES, "none", "?", "-")


class Factors(NamedTuple):
    """A table of factors with a row per image and a column per factor."""

    names: tuple[str, ...]
    classes: np.ndarray  # (images, factors) int64
    unordered: tuple[str, ...] = ()  # categorical factors: words, or declared as such
    levels: Mapping[str, np.ndarray] = MappingProxyType({})  # the value of each class, if numeric

    def select(self, rows: np.ndarray) -> "Factors":
        """Return the factors of these images, without those that are constant among them."""
        table = self.classes[rows]
        varying = [column for column in range(table.shape[1]) if np.ptp(table[:, column]) > 0]
        names = tuple(self.names[column] for column in varying)
        unordered = tuple(name for name in self.unordered if name in names)
        return Factors(names, table[:, varying], unordered, self.levels)


def read_factors(
    path: Path, selected: str | None, count: int, files: Sequence[str] | None
) -> Factors:
    """Read the table of factors of a set of images.

    A CSV starts with the names of the factors. A first column without a name that counts the rows,
    as pandas writes its index, is ignored. Rows are in the order of the images, unless a column
    names the image of each row: `file`, or any other column with the images' names. In a `.npz`
    file each vector is a factor, and so is each column of a matrix. If it holds `factors` and
    `factor_names`, as `score` takes them, these are used; names in `unordered` are categorical.

    Args:
        path: A .csv, .tsv, .npy or .npz file.
        selected: Names of columns to use, separated by commas. None uses all.
        count: The number of images.
        files: The names of the images, if they have any.

    Raises:
        UserError: The table cannot be read or does not fit the images.
    """
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    try:
        columns, categorical = (
            (read_csv(path), set[str]()) if is_csv else read_numpy(path, selected)
        )
    except UnicodeDecodeError:
        raise UserError(f"{path} is not encoded in UTF-8; save it as UTF-8") from None
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read as factors: {describe_error(error)}") from None
    name_column = FILE_COLUMN
    if is_csv and FILE_COLUMN not in columns:
        name_column = find_name_column(columns, files or ())
    row_names = columns.get(name_column)
    if selected is not None and is_csv:
        names = [name.strip() for name in selected.split(",")]
        columns = {name: _get_column(columns, name, path) for name in names}
    else:
        columns = {name: column for name, column in columns.items() if name != name_column}
    if not columns:
        raise UserError(f"{path} has no column of factors")
    if row_names is None:
        check_order_is_unambiguous(files or (), path)
        order = np.arange(count)
    else:
        order = match_rows(row_names.tolist(), files, path, name_column)
    expected = count if row_names is None else len(row_names)
    for name, column in columns.items():
        if len(column) != expected:
            raise UserError(f"{path} has {len(column):,} rows under {name!r} for {count:,} images")
    factors = factors_from_columns(columns, categorical, f"{path}: ")
    return factors._replace(classes=factors.classes[order])


def factors_from_columns(
    columns: Mapping[str, np.ndarray], categorical: Collection[str] = (), prefix: str = ""
) -> Factors:
    """Convert columns of numbers or words to classes.

    Args:
        columns: Values by the name of the factor.
        categorical: Names of numeric columns whose numbers have no order.
        prefix: The start of error messages.
    """
    values = {name: _parse_column(column, f"{prefix}{name!r}") for name, column in columns.items()}
    found = {name: _to_classes(column, f"{prefix}{name!r}") for name, column in values.items()}
    unordered = tuple(
        name for name, column in values.items() if column.dtype.kind == "U" or name in categorical
    )
    levels = {name: level for name, (level, _) in found.items() if name not in unordered}
    classes = np.stack([classes for _, classes in found.values()], axis=1)
    return Factors(tuple(values), classes, unordered, levels)


def _get_column(columns: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in columns:
        raise unknown_name_error(f"column in {path}", name, columns)
    return columns[name]


def _parse_column(column: np.ndarray, name: str) -> np.ndarray:
    """Return a column as numbers or as words.

    A few words among numbers are an error, because they are typing errors or missing values.
    """
    if column.dtype.kind in "fiub":
        return column.astype(np.float64)
    cells = column.astype(str)
    word_rows = [row for row, cell in enumerate(cells) if not is_numeric_text(cell)]
    if not word_rows:
        return cells.astype(np.float64)
    row, cell = word_rows[0] + 1, str(cells[word_rows[0]])
    if all(re.fullmatch(r"[+-]?\d*,\d+", cells[row]) for row in word_rows):
        raise UserError(f"{name} has {cell!r} in row {row:,}; write fractions with a point")
    all_gaps = all(cells[row].lower() in _GAPS_AMONG_NUMBERS for row in word_rows)
    many_words = len(word_rows) > _MAX_WORD_FRACTION * len(cells)
    if len(word_rows) == len(cells) or (many_words and not all_gaps):
        return cells
    raise UserError(
        f"{name} has {cell!r} in row {row:,} among numbers; fill it in, or choose other columns; "
        "if all of them are names, start each with a letter"
    )


def _to_classes(column: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted values of a column, and the index of each row's value among them."""
    if column.dtype.kind == "f":
        is_missing = ~np.isfinite(column)
    else:
        is_missing = np.isin(np.char.lower(column), MISSING_VALUES)
    if is_missing.any():
        row = is_missing.argmax() + 1
        raise UserError(f"{name} has no value in row {row:,}; fill it in, or choose other columns")
    values, classes = np.unique(column, return_inverse=True)
    if 2 * len(values) > len(column) + 1:
        raise UserError(
            f"{name} has {len(values):,} values in {len(column):,} rows, too many for classes: "
            f"round them, call a column of file names {FILE_COLUMN!r}, or choose the columns that "
            f"are factors, as in table.csv:shape,scale"
        )
    return values, classes.astype(np.int64)
