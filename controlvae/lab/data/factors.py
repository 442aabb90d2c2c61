"""Ground-truth factors of a user's own pictures: a table in a CSV or NumPy file, its values made class numbers."""

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.data.images.decoding import SUFFIXES
from controlvae.lab.data.images.numpy_files import FAULTS
from controlvae.metrics._validation import MISSING_VALUES

_FILE = "file"  # the column that names pictures
_CALLED = (
    "id",
    "image",
    "image_id",
    "picture",
    "name",
    "filename",
    "file_name",
    "path",
)  # and how others call it
_FEW = 0.1  # of a column's cells: where no more are words, numbers are meant
_GAPS_AMONG_NUMBERS = (*MISSING_VALUES, "none", "?", "-")  # and that there is no number


class Factors(NamedTuple):
    """A column per factor, a row per picture."""

    names: tuple[str, ...]
    classes: np.ndarray  # (pictures, factors) int64
    unordered: tuple[str, ...] = ()  # no quantities: those in words, or said to be none
    levels: Mapping[str, np.ndarray] = MappingProxyType(
        {}
    )  # of the others: the number each class stands for

    def among(self, rows: np.ndarray) -> "Factors":
        """Of these pictures, without the factors that are constant among them."""
        table = self.classes[rows]
        varying = [column for column in range(table.shape[1]) if np.ptp(table[:, column]) > 0]
        names = tuple(self.names[column] for column in varying)
        return Factors(
            names,
            table[:, varying],
            tuple(name for name in self.unordered if name in names),
            self.levels,
        )


def read_factors(
    path: Path, wanted: str | None, count: int, files: Sequence[str] | None
) -> Factors:
    """The table of `count` pictures, whose names are `files` where they have any; `wanted` are columns `a,b`.

    A CSV begins with the factors' names; a first column without one that counts the rows, as pandas writes its index,
    is left out. Its rows are in the order of the pictures, unless a column names the picture of each: `file`, or any
    other that holds their names. In a `.npz` a vector is a factor, and so is each column of a matrix; where it holds
    `factors` and `factor_names`, as `score` takes them, those are meant, and the ones in `unordered` are no quantities.
    """
    written = path.suffix.lower() in (".csv", ".tsv")
    try:
        columns, kinds = (_from_csv(path), set[str]()) if written else _from_numpy(path, wanted)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not written in UTF-8; save it so") from None
    except (*FAULTS, csv.Error) as error:
        raise UserError(f"{path} cannot be read as factors: {error}") from None
    naming = _FILE if _FILE in columns or not written else _naming(columns, files or ())
    named = columns.get(naming)
    if wanted is not None and written:
        columns = {name: _pick(columns, name, path) for name in map(str.strip, wanted.split(","))}
    else:
        columns = {name: column for name, column in columns.items() if name != naming}
    if not columns:
        raise UserError(f"{path} has no column of factors")
    if named is None:
        _check_one_order(files or (), path)
    order = np.arange(count) if named is None else _order(named.tolist(), files, path, naming)
    for name, column in columns.items():
        if len(column) != (count if named is None else len(named)):
            raise UserError(
                f"{path} has {len(column):,} rows under {name!r} for {count:,} pictures"
            )
    found = as_factors(columns, kinds, f"{path}: ")
    return found._replace(classes=found.classes[order])


def as_factors(
    columns: Mapping[str, np.ndarray], kinds: Collection[str] = (), where: str = ""
) -> Factors:
    """Columns of numbers or words, their values made classes; `kinds` are no quantities. `where` begins a message."""
    read = {name: _as_numbers(column, f"{where}{name!r}") for name, column in columns.items()}
    found = {name: _classes(column, f"{where}{name!r}") for name, column in read.items()}
    words = tuple(
        name for name, column in read.items() if column.dtype.kind == "U" or name in kinds
    )
    levels = {name: values for name, (values, _) in found.items() if name not in words}
    return Factors(
        tuple(read), np.stack([classes for _, classes in found.values()], axis=1), words, levels
    )


def _pick(columns: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in columns:
        raise unknown_name_error(f"column in {path}", name, columns)
    return columns[name]


def _from_csv(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    text = raw.decode(
        "utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    )
    if "\0" in text:
        raise ValueError("it is no text in UTF-8; save it so")
    rows = max(
        (_rows(text, separator) for separator in ",;\t"), key=_regularity
    )  # spreadsheets write all three
    if not rows:
        return {}
    if not rows[0][0].strip() and [row[0] for row in rows[1:]] == [
        str(number) for number in range(len(rows) - 1)
    ]:
        rows = [row[1:] for row in rows]
    head = [_FILE if name.strip().lower() == _FILE else name.strip() for name in rows[0]]
    if len(set(head)) != len(head) or "" in head:
        raise ValueError(
            f"its first line must name each column once, got {','.join(head)}; names of pictures are {_FILE!r}"
        )
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(head):
            raise ValueError(f"row {number} has {len(row)} values for {len(head)} columns")
    cells = np.array(rows[1:], dtype=str).reshape(len(rows) - 1, len(head))
    return {name: np.char.strip(cells[:, column]) for column, name in enumerate(head)}


def _rows(text: str, separator: str) -> list[list[str]]:
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
    if separator != ",":  # where fractions are written with a comma, lists are not
        return [
            [re.sub(r"^(\s*[+-]?\d*),(\d+\s*)$", r"\1.\2", cell) for cell in row] for row in rows
        ]
    return rows


def _regularity(rows: list[list[str]]) -> tuple[bool, int, bool]:
    """The right separator makes as many columns of every line, several if any does, and the most of those that do."""
    columns, regular = len(rows[0]) if rows else 0, len({len(row) for row in rows}) == 1
    return columns > 1 and regular, columns, regular


def _from_numpy(path: Path, wanted: str | None) -> tuple[dict[str, np.ndarray], set[str]]:
    """The columns, and the names of those that are said to be no quantities."""
    if path.suffix.lower() == ".npy":
        return _columns("factor", np.load(path)), set()
    if path.suffix.lower() != ".npz":
        raise ValueError("a table of factors is a .csv, .tsv, .npy or .npz file")
    with np.load(path) as file:
        named = _named(file) if {"factors", "factor_names"} <= set(file.files) else {}
        kinds = (
            set(np.atleast_1d(file["unordered"]).astype(str).tolist())
            if named and "unordered" in file
            else set()
        )
        if other := kinds - named.keys():
            raise ValueError(
                f"unordered names {sorted(other)}, which are not among the factors {list(named)}"
            )
        columns: dict[str, np.ndarray] = {}
        for name in (
            [part.strip() for part in wanted.split(",")]
            if wanted
            else ["factors"]
            if named
            else file.files
        ):
            if name in named:
                columns[name] = named[name]
            elif named and name == "factors":
                columns |= named
            elif name in file.files:
                columns |= _columns(name, file[name])
            else:
                raise unknown_name_error(f"array in {path}", name, [*named, *file.files])
    return columns, kinds


def _named(file: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of `factors` under their names."""
    table, names = file["factors"], np.atleast_1d(file["factor_names"]).astype(str).tolist()
    if table.ndim != 2 or table.shape[1] != len(names) or len(set(names)) != len(names):
        raise ValueError(
            f"factor_names must name each column of factors, {table.shape}, once, got {names}"
        )
    return dict(zip(names, table.T, strict=True))


def _columns(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} has shape {array.shape}; factors are a vector or a matrix, a row per picture"
        )
    matrix = array.reshape(len(array), -1).T
    return {
        name if len(matrix) == 1 else f"{name} {number}": column
        for number, column in enumerate(matrix)
    }


def _whole(name: str) -> str:
    """With slashes; and accents as one letter each, which some disks take apart."""
    return unicodedata.normalize("NFC", name.replace("\\", "/").removeprefix("./"))


def _base(name: str) -> str:
    return _whole(name).rpartition("/")[2]


def _bare(name: str) -> str:
    """Without the ending of a picture; whatever else follows a dot belongs to the name."""
    stem, dot, ending = name.rpartition(".")
    return stem if f"{dot}{ending}".lower() in SUFFIXES else name


# How a table may name pictures: as the folder does, without the ending, without their folders, or without either.
_WAYS: tuple[Callable[[str], str], ...] = (
    _whole,
    lambda name: _bare(_whole(name)),
    _base,
    lambda name: _bare(_base(name)),
)


def _naming(columns: Mapping[str, np.ndarray], files: Sequence[str]) -> str:
    """The column whose cells are names of the pictures, most of them at least; `file` where none is.

    Numbers may be a factor as well: they are names where they name every picture, under a heading that says so.
    """
    for name, column in columns.items():
        found = max(_in_common(column.tolist(), files, way) for way in _WAYS)
        if all(map(_is_number, column.tolist())):
            taken = name.lower() in _CALLED and found == len(column) == len(files)
        else:
            taken = 2 * found > len(column)
        if taken:
            return name
    return _FILE


def _in_common(named: Sequence[str], files: Sequence[str], way: Callable[[str], str]) -> int:
    """How many pictures both name, in this way of naming; none where it does not tell pictures apart."""
    known = {way(name) for name in files}
    return len(known.intersection(map(way, named))) if len(known) == len(files) else 0


def _order(named: list[str], files: Sequence[str] | None, path: Path, heading: str) -> np.ndarray:
    """For each picture the row that names it; each must have one, and each row a picture."""
    if files is None:
        raise UserError(
            f"{path} names files, and what it is about comes from none; leave out the column {_FILE!r}"
        )
    way = max(
        _WAYS, key=lambda one: _in_common(named, files, one)
    )  # the first of those that are as good
    rows = {way(name): row for row, name in enumerate(named)}
    if len(rows) != len(named):
        raise UserError(f"{path} names {len(named) - len(rows):,} pictures twice under {heading!r}")
    known = [way(name) for name in files]
    if named and not rows.keys() & set(known):
        raise UserError(
            f"{path} names pictures as {named[0]!r}, which none is called; they are called as {files[0]!r}"
        )
    for whole, missing, cure in (
        ("a row for", set(known) - rows.keys(), "add it, or take the picture away"),
        ("the picture of", rows.keys() - set(known), "take its row away"),
    ):
        if missing:
            more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
            raise UserError(
                f"{path}, by its column {heading!r}: {whole} {min(missing)}{more} is missing; {cure}"
            )
    return np.array([rows[name] for name in known])


def _check_one_order(files: Sequence[str], path: Path) -> None:
    """Refuses names that a person counts in another order than a computer sorts them: whose rows would these be?"""
    counted = sorted(
        files,
        key=lambda name: re.sub(r"(?<![.0-9])[0-9]+", lambda digits: digits[0].zfill(30), name),
    )
    for row, (one, other) in enumerate(zip(files, counted, strict=True), start=1):
        if one != other:
            raise UserError(
                f"{path}: is row {row} about {one}, as files are sorted, or about {other}, as they are counted? Add a "
                f"column {_FILE!r} with the name of each picture"
            )


def _as_numbers(column: np.ndarray, name: str) -> np.ndarray:
    """Numbers where all are, words where many are not; a word or two among numbers are a slip, or a gap."""
    if column.dtype.kind in "fiub":
        return column.astype(np.float64)
    cells = column.astype(str)
    words = [row for row, cell in enumerate(cells) if not _is_number(cell)]
    if not words:
        return cells.astype(np.float64)
    row, cell = words[0] + 1, str(cells[words[0]])
    if all(re.fullmatch(r"[+-]?\d*,\d+", cells[row]) for row in words):
        raise UserError(f"{name} has {cell!r} in row {row:,}; write fractions with a point")
    gaps = all(cells[row].lower() in _GAPS_AMONG_NUMBERS for row in words)
    if len(words) == len(cells) or (len(words) > _FEW * len(cells) and not gaps):
        return cells
    raise UserError(
        f"{name} has {cell!r} in row {row:,} among numbers; fill it in, or choose other columns; "
        "where all are names, begin each with a letter"
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python takes as a part of a number


def _classes(column: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values there are, sorted, and for each row the number of its own among them."""
    missing = (
        ~np.isfinite(column)
        if column.dtype.kind == "f"
        else np.isin(np.char.lower(column), MISSING_VALUES)
    )
    if missing.any():
        raise UserError(
            f"{name} has no value in row {missing.argmax() + 1:,}; fill it in, or choose other columns"
        )
    values, classes = np.unique(column, return_inverse=True)
    if 2 * len(values) > len(column) + 1:
        raise UserError(
            f"{name} has {len(values):,} values in {len(column):,} rows, too many for classes: round them, call a "
            f"column of file names {_FILE!r}, or choose the columns that are factors, as in table.csv:shape,scale"
        )
    return values, classes.astype(np.int64)
