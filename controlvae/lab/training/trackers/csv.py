"""A CSV file in the run folder, for spreadsheets."""

import csv
from typing import Any

from controlvae.lab.io import write_csv
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import numbers


class CSV:
    """File `RUN/log.csv` with one row per log record.

    It is written again from `log.jsonl` when training starts or resumes. Rows of steps that a crash
    took back are therefore cut, and a run that was started without this logger gets all its rows.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._file = folder, folder.path / "log.csv"
        self._columns: list[str] = []
        self._rewrite(folder.records())

    def write(self, record: dict[str, Any]) -> None:
        """Append one row. A record with new columns rewrites the file."""
        row = _row(record)
        if not row.keys() <= set(self._columns):
            # The log of a run has this record already. That of a custom loop may not.
            earlier = [one for one in self._folder.records() if one["step"] < record["step"]]
            self._rewrite([*earlier, record])
            return
        with self._file.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([row.get(name, "") for name in self._columns])

    def close(self) -> None:
        """Do nothing: the file is complete after every record."""

    def _rewrite(self, records: list[dict[str, Any]]) -> None:
        rows = [_row(record) for record in records]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        if rows or self._file.exists():
            cells = ([row.get(name) for name in self._columns] for row in rows)
            write_csv(self._file, self._columns, cells)


def _row(record: dict[str, Any]) -> dict[str, float]:
    return {"step": record["step"], **numbers(record)}
