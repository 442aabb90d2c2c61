"""Logs as a page draws them: what was added since it last looked, as columns."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.lab.runs.folder import parse_record

_NOT_CURVES = {"step", "kl_per_latent", "saturated"}
_MOST_NUMBERS = 100_000  # of a long log when a page opens it; every new line is sent after that
_FEWEST_POINTS = 500  # of a curve, however many latents there are


@dataclass
class LogTail:
    """The records that were added to a file of JSON lines since it was last read; a damaged line is passed over."""

    path: Path
    position: int = 0
    last_step: float = -math.inf

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether to begin anew, because the run was resumed from an earlier step, and the new records."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size == self.position:
            return False, []
        before, found = self.last_step, self._new()
        # No record where the last reading ended: what stands there is no longer the beginning of a line.
        anew = size < self.position or (
            bool(found) and (found[0] is None or found[0]["step"] <= before)
        )
        if anew:
            self.position, self.last_step = 0, -math.inf
            found = self._new()
        return anew, [record for record in found if record is not None]

    def _new(self) -> list[dict[str, Any] | None]:
        found = []
        with contextlib.suppress(OSError), self.path.open("rb") as file:  # it may have been deleted
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # being written
                self.position += len(line)
                found.append(record := parse_record(line, ("step",)))
                self.last_step = record["step"] if record else self.last_step
        return found


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Records as columns, with the KL of each latent apart: {"step": [...], "kl": [...], ..., "latents": [[...]]}."""
    width = len(records[0]) + len(records[0].get("kl_per_latent") or ())
    every = math.ceil(len(records) / max(_FEWEST_POINTS, _MOST_NUMBERS // width))
    records = records[::-every][::-1]  # the last one is among them
    names = [name for name in records[0] if name not in _NOT_CURVES]
    table: dict[str, Any] = {"step": [record["step"] for record in records]}
    table |= {name: [_short(record.get(name)) for record in records] for name in names}
    if "kl_per_latent" in records[0]:
        rows = [record.get("kl_per_latent") or () for record in records]
        table["latents"] = [[_short(value) for value in of] for of in zip(*rows, strict=False)]
    return table


def _short(value: Any) -> float | None:
    """Five digits: more than a screen shows."""
    return float(f"{value:.5g}") if is_number(value) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
