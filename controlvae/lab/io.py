"""How files are written: whole or not at all, and where it cannot be done, one line that says so."""

import contextlib
import csv
import glob
import io
import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlvae.errors import UserError

PART = ".part-"  # how the name of an unfinished file begins; one is left behind by a crash alone
_ABANDONED = 600  # seconds in which nothing was written to it: its writer was killed


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Around what writes a file: gives the name to write under, which becomes `path` once it is whole.

    Its folder is made, and what goes wrong is said in one line.
    """
    # A name for each writer, and the same suffix: it says which kind of picture to write.
    beside = path.parent / f"{PART}{uuid.uuid4().hex[:8]}-{path.name}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_torn(path.parent, f"{PART}*-{glob.escape(path.name)}")
        yield beside
        with beside.open("rb") as written:  # on the disk before it has its name
            os.fsync(written.fileno())
        beside.replace(path)
    except (OSError, ValueError) as error:  # the second for a kind of picture that nobody knows
        raise UserError(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def clear_torn(folder: Path, pattern: str) -> None:
    """Unlinks unfinished files whose writers were killed."""
    for torn in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - torn.stat().st_mtime > _ABANDONED:
                torn.unlink()


def write_text(path: Path, text: str) -> None:
    """All of the file or none of it."""
    with writing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """All of the file or none of it."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Without numbers that JSON does not know: the perplexity of a model that has learnt nothing may be too large."""
    match value:
        case dict():
            return {name: finite(part) for name, part in value.items()}
        case list() | tuple():
            return [finite(part) for part in value]
        case float() if not math.isfinite(value):
            return None
    return value


def write_csv(path: Path, heads: Sequence[str], lines: Iterable[Iterable[Any]]) -> None:
    """A sheet; what is None or not a number is left empty."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_cell(value) for value in line] for line in lines)
    write_text(path, sheet.getvalue())


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
