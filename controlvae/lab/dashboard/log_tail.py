"""Incremental reading of log files, and their conversion to columns for the page."""

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from controlvae.lab.reading import open_file
from controlvae.lab.runs.records import parse_record

T = TypeVar("T", bound=Mapping[str, Any])

_NOT_CURVES = {"step", "kl_per_latent"}
_MAX_NUMBERS = 100_000  # of a long log when a page opens it; later records are all sent
_MIN_POINTS = 500  # of a curve, however many latents there are


@dataclass
class LogTail:
    """Reader of the records added to a JSON lines file since the last call of `read`.

    A corrupt line is skipped.
    """

    path: Path
    position: int = 0
    last_step: float = -math.inf

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Read the new records.

        Returns:
            True if the reader must discard earlier records because the run was resumed from an
            earlier step, and the records.
        """
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size == self.position:
            return False, []
        before, records = self.last_step, self._read_lines()
        # No valid record at the old position means that the file was rewritten.
        is_rewritten = size < self.position or (
            bool(records) and (records[0] is None or records[0]["step"] <= before)
        )
        if is_rewritten:
            self.position, self.last_step = 0, -math.inf
            records = self._read_lines()
        return is_rewritten, [record for record in records if record is not None]

    def _read_lines(self) -> list[dict[str, Any] | None]:
        """Parse the new lines: all of a few, and the first and every n-th of many."""
        data = b""
        # The file may have been deleted in the meantime.
        with contextlib.suppress(OSError), open_file(self.path) as file:
            file.seek(self.position)
            data = file.read()
        *lines, torn = data.split(b"\n")  # the last line may still be being written
        self.position += len(data) - len(torn)
        if not lines:
            return []
        first = parse_record(lines[0], ("step",))
        every = 1 if first is None else math.ceil(len(lines) / max_points(first))
        records = [first, *(parse_record(line, ("step",)) for line in lines[:0:-every][::-1])]
        self.last_step = next((r["step"] for r in reversed(records) if r), self.last_step)
        return records


def max_points(record: Mapping[str, Any]) -> int:
    """Return how many records of a log are shown at most, given one of them."""
    width = len(record) + len(record.get("kl_per_latent") or ())
    return max(_MIN_POINTS, _MAX_NUMBERS // width)


def thin(records: Sequence[T]) -> Sequence[T]:
    """Return every n-th record of a long log."""
    every = math.ceil(len(records) / max_points(records[0])) if records else 1
    return records[::-every][::-1]  # counted from the end, so that the last record is kept


def to_columns(
    records: Sequence[Mapping[str, Any]], wanted: Collection[str] | None = None
) -> dict[str, Any]:
    """Convert records to columns, thinned if the log is long.

    Args:
        records: Records of a log, at least one.
        wanted: Names of the columns to return besides `step`; None for all of them.

    Returns:
        {"step": [...], "kl": [...], ..., "latents": [[...], ...]}, the KL of each latent last.
    """
    records = thin(records)
    names = [n for n in records[0] if n not in _NOT_CURVES and (wanted is None or n in wanted)]
    table: dict[str, Any] = {"step": [record["step"] for record in records]}
    table |= {name: [_round(record.get(name)) for record in records] for name in names}
    if "kl_per_latent" in records[0] and (wanted is None or "latents" in wanted):
        rows = [record.get("kl_per_latent") or () for record in records]
        table["latents"] = [[_round(kl) for kl in latent] for latent in zip(*rows, strict=False)]
    return table


def names_with_numbers(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns of records that hold a number."""
    names = (name for name in records[0] if name not in _NOT_CURVES)
    return [name for name in names if any(is_finite_number(r.get(name)) for r in records)]


def _round(value: Any) -> float | None:
    """Round to five significant digits, more than a screen shows; None if not a number."""
    return float(f"{value:.5g}") if is_finite_number(value) else None


def is_finite_number(value: Any) -> bool:
    """Return True for a finite int or float."""
    return isinstance(value, int | float) and math.isfinite(value)
