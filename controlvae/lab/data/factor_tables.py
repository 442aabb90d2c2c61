"""Readers of tables of factors: CSV files of any common dialect, and NumPy files."""

import codecs
import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from controlvae.errors import unknown_name_error
from controlvae.lab.data.images.numpy_files import load_array_file
from controlvae.lab.reading import MAX_TABLE_BYTES, MAX_TABLE_LETTERS, read_bytes

FILE_COLUMN = "file"  # the column with the names of images


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of a CSV file as text.

    Raises:
        ValueError: The file is not a table with a name for each column.
    """
    data = read_bytes(path, MAX_TABLE_BYTES)
    is_utf16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    if "\0" in text:
        raise ValueError("it is not text in UTF-8; save it as UTF-8")
    # Spreadsheets write all three separators.
    rows = max((_split_rows(text, separator) for separator in ",;\t"), key=_regularity)
    if not rows:
        return {}
    row_numbers = [str(number) for number in range(len(rows) - 1)]
    if not rows[0][0].strip() and [row[0] for row in rows[1:]] == row_numbers:
        rows = [row[1:] for row in rows]  # the index that pandas writes
    names = [name.strip() for name in rows[0]]
    names = [FILE_COLUMN if name.lower() == FILE_COLUMN else name for name in names]
    if len(set(names)) != len(names) or "" in names:
        raise ValueError(
            f"its first line must name each column once, got {','.join(names)}; "
            f"the column of image names is called {FILE_COLUMN!r}"
        )
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} values for {len(names)} columns")
    longest = max((len(cell) for row in rows for cell in row), default=0)
    if longest * len(rows) * len(names) > MAX_TABLE_LETTERS:
        raise ValueError(f"it has cells of {longest:,} letters, too long for a table of factors")
    cells = np.array(rows[1:], dtype=str).reshape(len(rows) - 1, len(names))
    return {name: np.char.strip(cells[:, column]) for column, name in enumerate(names)}


def read_numpy(path: Path, selected: str | None) -> tuple[dict[str, np.ndarray], set[str]]:
    """Read the columns of a NumPy file.

    Args:
        path: A .npy or .npz file.
        selected: Names of factors or arrays to use, separated by commas. None uses all.

    Returns:
        The columns by name, and the names of categorical ones.

    Raises:
        ValueError: The file does not hold a table of factors.
    """
    if path.suffix.lower() == ".npy":
        return _split_columns("factor", load_array_file(path)[""]), set()
    if path.suffix.lower() != ".npz":
        raise ValueError("a table of factors is a .csv, .tsv, .npy or .npz file")
    arrays = load_array_file(path)
    named = _named_columns(arrays) if {"factors", "factor_names"} <= arrays.keys() else {}
    categorical: set[str] = set()
    if named and "unordered" in arrays:
        categorical = set(np.atleast_1d(arrays["unordered"]).astype(str).tolist())
    if unlisted := categorical - named.keys():
        raise ValueError(
            f"unordered names {sorted(unlisted)}, which are not among the factors {list(named)}"
        )
    names = ["factors"] if named else list(arrays)
    if selected:
        names = [name.strip() for name in selected.split(",")]
    columns: dict[str, np.ndarray] = {}
    for name in names:
        if name in named:
            columns[name] = named[name]
        elif named and name == "factors":
            columns |= named
        elif name in arrays:
            columns |= _split_columns(name, arrays[name])
        else:
            raise unknown_name_error(f"array in {path}", name, [*named, *arrays])
    return columns, categorical


def is_numeric_text(cell: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python accepts between digits


def _split_rows(text: str, separator: str) -> list[list[str]]:
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
    if separator == ",":
        return rows
    # Locales that write fractions with a comma do not separate columns with one.
    fraction = re.compile(r"^(\s*[+-]?\d*),(\d+\s*)$")
    return [[fraction.sub(r"\1.\2", cell) for cell in row] for row in rows]


def _regularity(rows: list[list[str]]) -> tuple[bool, int, bool]:
    """Rank a separator: the right one gives every line the same number of columns, and the most."""
    columns, is_regular = len(rows[0]) if rows else 0, len({len(row) for row in rows}) == 1
    return columns > 1 and is_regular, columns, is_regular


def _named_columns(file: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    table, names = file["factors"], np.atleast_1d(file["factor_names"]).astype(str).tolist()
    if table.ndim != 2 or table.shape[1] != len(names) or len(set(names)) != len(names):
        raise ValueError(
            f"factor_names must name each column of factors, {table.shape}, once, got {names}"
        )
    return dict(zip(names, table.T, strict=True))


def _split_columns(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} has shape {array.shape}; factors are a vector or a matrix, one row per image"
        )
    columns = array.reshape(len(array), -1).T
    if len(columns) == 1:
        return {name: columns[0]}
    return {f"{name} {number}": column for number, column in enumerate(columns)}
