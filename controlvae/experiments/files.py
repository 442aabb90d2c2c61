"""How files are written: whole or not at all, and where it cannot be done, one line that says so."""

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from controlvae.errors import UserError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes a file: its folder is made, and what goes wrong is said in one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """All of the file or none of it: written beside, then renamed."""
    beside = path.with_name(path.name + ".part")
    with writing(path):
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def write_csv(path: Path, heads: Sequence[str], lines: Iterable[Iterable[Any]]) -> None:
    """A sheet; what is None or not a number is left empty."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_cell(value) for value in line] for line in lines)
    write_text(path, sheet.getvalue())


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
