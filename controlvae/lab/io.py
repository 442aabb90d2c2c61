"""Atomic file writing, with one-line errors."""

import contextlib
import csv
import glob
import io
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlvae.errors import UserError

PART = ".part-"  # prefix of unfinished files, which only a crash leaves behind
_ABANDONED_SECONDS = 600  # without a change: the writer was killed


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` when it is complete.

    The folder is created if it is missing.

    Raises:
        UserError: If the file cannot be written.
    """
    # Each writer has its own name. The suffix is kept, because it selects the image format.
    temporary = path.parent / f"{PART}{uuid.uuid4().hex[:8]}-{path.name}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_torn(path.parent, f"{PART}*-{glob.escape(path.name)}")
        yield temporary
        with temporary.open("rb") as written:  # synced before it is renamed
            os.fsync(written.fileno())
        temporary.replace(path)
    except (OSError, ValueError) as error:  # ValueError: unknown image format
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write {path}: {reason}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def clear_torn(folder: Path, pattern: str) -> None:
    """Delete unfinished files whose writers were killed."""
    for torn in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - torn.stat().st_mtime > _ABANDONED_SECONDS:
                torn.unlink()


def clear_torn_folders(folder: Path) -> None:
    """Delete unfinished folders that were to become `folder` and whose writers were killed."""
    for torn in folder.absolute().parent.glob(f"{PART}*-{glob.escape(folder.name)}"):
        with contextlib.suppress(OSError):
            if torn.is_dir() and time.time() - torn.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(torn, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Replace infinite and NaN numbers by None, because JSON has none.

    The perplexity of an untrained model may be too large for a float.
    """
    match value:
        case dict():
            return {name: finite(part) for name, part in value.items()}
        case list() | tuple():
            return [finite(part) for part in value]
        case float() if not math.isfinite(value):
            return None
    return value


def write_csv(path: Path, headings: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file atomically. None and NaN become empty cells.

    Args:
        path: File to write.
        headings: First line.
        rows: Values of the other lines.
    """
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([_format_cell(value) for value in row] for row in rows)
    write_text(path, sheet.getvalue())


def _format_cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
