"""Ground-truth factors of a user's own pictures: a table in a CSV or NumPy file, its values made class numbers."""

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError, unknown

_FILE = "file"  # the column that names pictures


class Factors(NamedTuple):
    """A column per factor, a row per picture."""

    names: tuple[str, ...]
    classes: np.ndarray  # (pictures, factors) int64


def read_factors(path: Path, wanted: str | None, count: int, files: Sequence[str] | None) -> Factors:
    """The table of `count` pictures, whose names are `files` where they have any; `wanted` are columns `a,b`.

    A CSV begins with the factors' names. Its rows are in the order of the pictures, unless a column `file` names the
    picture of each. In a `.npz` a vector is a factor, and so is each column of a matrix.
    """
    try:
        columns = _from_csv(path) if path.suffix == ".csv" else _from_numpy(path, wanted)
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as factors: {error}") from None
    named = columns.pop(_FILE, None)
    if wanted is not None and path.suffix == ".csv":
        columns = {name: _pick(columns, name.strip(), path) for name in wanted.split(",")}
    if not columns:
        raise UserError(f"{path} has no column of factors")
    order = np.arange(count) if named is None else _order(named.tolist(), files, path)
    for name, column in columns.items():
        if len(column) != (count if named is None else len(named)):
            raise UserError(f"{path} has {len(column):,} rows under {name!r} for {count:,} pictures")
    return Factors(tuple(columns), np.stack([_classes(column[order]) for column in columns.values()], axis=1))


def _pick(columns: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in columns:
        raise unknown(f"column in {path}", name, columns)
    return columns[name]


def _from_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        return {}
    head = [name.strip() for name in rows[0]]
    if len(set(head)) != len(head) or "" in head:
        raise ValueError(f"its first line must name each column once, got {','.join(head)}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(head):
            raise ValueError(f"row {number} has {len(row)} values for {len(head)} columns")
    cells = np.array(rows[1:], dtype=str).reshape(len(rows) - 1, len(head))
    return {name: np.char.strip(cells[:, column]) for column, name in enumerate(head)}


def _from_numpy(path: Path, wanted: str | None) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        arrays = {"factor": np.load(path)}
    elif path.suffix == ".npz":
        with np.load(path) as file:
            names = [name.strip() for name in wanted.split(",")] if wanted else file.files
            for name in names:
                if name not in file.files:
                    raise unknown(f"array in {path}", name, file.files)
            arrays = {name: file[name] for name in names}
    else:
        raise ValueError("a table of factors is a .csv, .npy or .npz file")
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim not in (1, 2):
            raise ValueError(f"{name} has shape {array.shape}; factors are a vector or a matrix, a row per picture")
        matrix = array.reshape(len(array), -1).T
        columns |= {name if len(matrix) == 1 else f"{name} {number}": column for number, column in enumerate(matrix)}
    return columns


def _order(named: list[str], files: Sequence[str] | None, path: Path) -> np.ndarray:
    """For each picture the row that names it; each must have one, and each row a picture."""
    if files is None:
        raise UserError(f"{path} names files, and the pictures of an array have no names; leave out the column 'file'")
    rows = {name.replace("\\", "/").removeprefix("./"): row for row, name in enumerate(named)}
    if len(rows) != len(named):
        raise UserError(f"{path} names {len(named) - len(rows):,} pictures twice")
    known = set(files)
    for kind, missing in (("a row for", known - rows.keys()), ("the picture of", rows.keys() - known)):
        if missing:
            more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
            raise UserError(f"{path}: {kind} {min(missing)}{more} is missing")
    return np.array([rows[name] for name in files])


def _classes(column: np.ndarray) -> np.ndarray:
    """Values as numbers from 0 in their order, numerical where all are numbers."""
    with contextlib.suppress(ValueError):
        column = column.astype(np.float64)
    return np.unique(column, return_inverse=True)[1].astype(np.int64)
