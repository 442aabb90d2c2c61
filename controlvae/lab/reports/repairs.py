"""Section of a report about runs that repaired themselves."""

from collections.abc import Sequence

from controlvae.lab.reports.report_run import ReportRun
from controlvae.lab.reports.views import TableView
from controlvae.lab.runs.repairs import KILLED

_HEADS = ["run", "symptom", "found at step", "evidence", "taken back to step", "remedy"]


def repair_table(runs: Sequence[ReportRun]) -> TableView | None:
    """Return a table of all repairs, or None if no run was repaired.

    Args:
        runs: Runs of the report.
    """
    rows = [
        [run.name, one.symptom, f"{one.found_at:,}", one.evidence, f"{one.step:,}", one.remedy]
        for run in runs
        for one in run.folder.repairs()
    ]
    if not rows:
        return None
    notes = ["What a run did after the step that it was taken back to is not in its log."]
    if any(row[1] != KILLED for row in rows):
        notes.append("Settings and numbers of this page are those after the repairs.")
    return TableView("Repairs", _HEADS, rows, notes)
