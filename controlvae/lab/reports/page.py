"""A self-contained HTML report on runs: verdict, figures, tables and commands."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from controlvae import __version__
from controlvae.errors import UserError, shell_command
from controlvae.lab.config import Experiment
from controlvae.lab.io import write_text
from controlvae.lab.reports.comparison_tables import image_table, number_table, score_table
from controlvae.lab.reports.dialog_section import text_views
from controlvae.lab.reports.elbo_cost import cost_table
from controlvae.lab.reports.notes import describe_data
from controlvae.lab.reports.repairs import repair_table
from controlvae.lab.reports.report_run import ReportRun, read_runs
from controlvae.lab.reports.sections import (
    MAX_DETAILED_RUNS,
    curve_figures,
    image_section,
    run_sections,
)
from controlvae.lab.reports.verdict import Outcome, report_verdict
from controlvae.lab.reports.views import FigureEmbedder, join_names
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws.schedules import Constant

Progress = Callable[[float, str], None]  # share done and what is being done
_TEMPLATES = Path(__file__).parent / "templates"
_MAX_NAMES_IN_TITLE = 4


def write_report(
    folders: Sequence[RunFolder],
    path: Path,
    *,
    progress: Progress | None = None,
    date: datetime.date | None = None,
) -> Path:
    """Write a report on runs. It reads run folders and nothing else.

    A run that cannot be read is skipped and named in the report.

    Args:
        folders: The run folders.
        path: The HTML file.
        progress: Called with the share done, 0 to 1, and a text on what is being done.
        date: Date in the head of the report, by default today.

    Returns:
        The path.

    Raises:
        UserError: None of the runs can be read.
    """
    notify = progress or (lambda share, text: None)
    notify(0.0, "reading the runs")
    runs, skipped = read_runs(folders)
    if not runs:
        raise UserError("; ".join(skipped) or "expected at least one run folder, got none")
    content = _page_content(runs, notify)
    notify(0.9, "writing the page")
    page = (
        make_environment()
        .get_template("report.html.jinja")
        .render(
            title=_title(runs),
            version=__version__,
            date=(date or datetime.date.today()).isoformat(),
            runs=runs,
            skipped=skipped,
            **content,
        )
    )
    write_text(path, page)
    notify(1.0, "done")
    return path


def _page_content(runs: Sequence[ReportRun], notify: Progress) -> dict[str, Any]:
    """Return the sections of the page by their names in the template."""
    embedder = FigureEmbedder()
    notify(0.1, "plotting curves")
    curves = curve_figures(runs, embedder)
    notify(0.3, "arranging images")
    images, texts = image_section(runs), text_views(runs)
    sections = []
    for number, section in enumerate(run_sections(runs, embedder), start=1):
        notify(0.4 + 0.5 * number / len(runs), f"run {number} of {len(runs)}")
        sections.append(section)
    outcomes = [_outcome(run) for run in runs]
    headline, verdicts = report_verdict(outcomes)
    tables = [number_table(runs), cost_table(outcomes), score_table(runs), image_table(runs)]
    return {
        "data_sets": list(dict.fromkeys(describe_data(run.experiment) for run in runs)),
        "headline": headline,
        "verdicts": verdicts,
        "data_warning": _data_warning(runs),
        "warnings": _group_warnings(runs),
        "repairs": repair_table(runs),
        "curves": curves,
        "images": images,
        "omitted": _omitted(runs),
        "texts": texts,
        "tables": [table for table in tables if table is not None],
        "sections": sections,
        "commands": _commands(runs),
    }


def _omitted(runs: Sequence[ReportRun]) -> str:
    """Describe what a page of many runs leaves to the reports of single runs, or return ""."""
    if len(runs) <= MAX_DETAILED_RUNS:
        return ""
    command = shell_command("report", runs[-1].folder.path)
    return (
        f"This page has {len(runs)} runs. Images are those of the first {MAX_DETAILED_RUNS}, and "
        f"figures of single runs are left out. To see them for a run: {command}"
    )


def make_environment() -> Environment:
    """Return the environment of the page templates, which escapes every text."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    return environment


def _title(runs: Sequence[ReportRun]) -> str:
    if len(runs) > _MAX_NAMES_IN_TITLE:
        presets = list(dict.fromkeys(run.experiment.name for run in runs))
        return (
            f"{len(runs)} runs of {join_names(presets)}"
            if len(presets) < 4
            else f"{len(runs)} runs"
        )
    return ", ".join(run.name for run in runs)


def _outcome(run: ReportRun) -> Outcome:
    experiment = run.experiment
    law = experiment.control
    constant = law.value if isinstance(law, Constant) else None
    return Outcome(
        run.name,
        run.records,
        run.metrics,
        controlled=run.trace.controlled,
        weight="β follows a schedule" if constant is None else f"β is constant at {constant:g}",
        is_plain=constant == 1 and run.trace.weighted == "kl",
        task=f"{describe_data(experiment)} {experiment.objective.likelihood}",
        method=repr(_without_seed(experiment)),
        seed=experiment.training.seed,
    )


def _without_seed(experiment: Experiment) -> Experiment:
    return replace(experiment, training=replace(experiment.training, seed=0))


def _data_warning(runs: Sequence[ReportRun]) -> str | None:
    """Return a warning if the runs were trained on different data."""
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(describe_data(run.experiment), []).append(run.name)
    if len(names) < 2:
        return None
    groups = "; ".join(f"{join_names(group)} on {data}" for data, group in names.items())
    return f"These runs have different data, so their nats are not comparable: {groups}."


def _group_warnings(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """Return each distinct warning once, with the names of the runs it applies to."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.warnings:
            names.setdefault(warning, []).append(run.name)
    return [
        (f"all {len(runs)} runs" if 2 < len(group) == len(runs) else join_names(group), warning)
        for warning, group in names.items()
    ]


def _commands(runs: Sequence[ReportRun]) -> list[str]:
    commands = (str(run.folder.manifest().get("command", "")) for run in runs)
    return [command for command in dict.fromkeys(commands) if command]
