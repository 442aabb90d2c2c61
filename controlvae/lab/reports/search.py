"""The report of a search: best trials, history, settings and their importance."""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae import __version__
from controlvae.errors import UserError, shell_command
from controlvae.lab.cluster.search import SearchStudy
from controlvae.lab.cluster.search_records import TrialRecord
from controlvae.lab.cluster.search_settings import JOURNAL_FILE, Better, read_settings
from controlvae.lab.cluster.search_space import (
    describe_values,
    format_value,
    make_assignments,
    short_names,
)
from controlvae.lab.evaluation.registry import find_metric
from controlvae.lab.evaluation.search_objective import CURVES, find_objective
from controlvae.lab.io import write_csv, write_text
from controlvae.lab.plots import search as plots
from controlvae.lab.reports.page import make_environment
from controlvae.lab.reports.views import FigureEmbedder, FigureView, TableView

_BEST_TRIALS = 10
_TERMINAL_TRIALS = 5
_IMPORTANCE = (
    "Importance by PED-ANOVA (Watanabe et al., 2023): how differently a setting is distributed "
    "among the best tenth of the finished trials, or at least five, and among all of them. It says "
    "what the best trials share, not what causes them, and it knows nothing of pruned trials."
)


@dataclass(frozen=True)
class SearchView:
    """A search as its folder shows it."""

    path: Path
    data: dict[str, Any]  # search.json
    records: list[TrialRecord]
    importances: dict[str, float]

    @property
    def better(self) -> Better:
        """Direction of the objective."""
        better: Better = self.data["better"]
        return better

    @property
    def ranked(self) -> list[TrialRecord]:
        """Finished trials, best first."""
        finished = [record for record in self.records if record.value is not None]
        sign = -1 if self.better == "higher" else 1
        return sorted(finished, key=lambda record: sign * (record.value or 0.0))

    @property
    def examples(self) -> str:
        """Examples that the objective is measured on, for a sentence."""
        return "measured on held-out examples, " if self.data["objective"] in CURVES else ""

    @property
    def label(self) -> str:
        """Name and unit of the objective."""
        name = self.data["objective"]
        if name in CURVES:
            return f"{name} (nats per example)"
        if name.startswith("function "):
            return str(name)
        metric = find_metric(find_objective(name).paths[0])
        return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def read_search(path: Path) -> SearchView:
    """Read the folder of a search.

    Args:
        path: The folder.

    Raises:
        UserError: If it holds no search, or one that cannot be read.
    """
    data = read_settings(path)
    if not (path / JOURNAL_FILE).is_file():
        raise UserError(f"{path / JOURNAL_FILE} is missing")
    study = SearchStudy(path, data["better"])
    return SearchView(path, data, study.records(), study.importances())


def write_search_report(path: Path, out: Path | None = None) -> Path:
    """Write the report of a search as one HTML file, and its trials as `search.csv`.

    Args:
        path: Folder of the search.
        out: The HTML file. The default is `search.html` in the folder.

    Returns:
        The HTML file.
    """
    view = read_search(path)
    names = list(view.data["vary"])
    heads = ["trial", "state", view.data["objective"], *names, "reason", "seconds", "run"]
    rows = [
        [
            record.number,
            record.state,
            record.value,
            *(record.settings.get(name) for name in names),
            record.reason,
            record.seconds,
            record.run.path.name,
        ]
        for record in view.records
    ]
    write_csv(path / "search.csv", heads, rows)
    out = path / "search.html" if out is None else out
    counts = _count_states(view.records)
    page = (
        make_environment()
        .get_template("search.html.jinja")
        .render(
            title=f"Search over {view.data['source']}",
            version=__version__,
            date=datetime.date.today().isoformat(),
            view=view,
            counts=counts,
            headline=_headline(view),
            best=_trial_table(view, view.ranked[:_BEST_TRIALS], "Best trials"),
            trials=_trial_table(view, view.records, "All trials"),
            figures=_figures(view),
            importance=_importance_note(view),
            commands=_commands(view),
        )
    )
    write_text(out, page)
    return out


def describe_search(path: Path, source: str, overrides: list[str]) -> list[str]:
    """Return a summary of a search for the terminal: best trials, importance, next command.

    Args:
        path: Folder of the search.
        source: Preset or place of the code, for the command that trains the best settings.
        overrides: Settings that were changed in every trial.
    """
    view = read_search(path)
    lines = [f"{view.label}, {view.examples}{view.better} is better; {_count_states(view.records)}"]
    names, objective = short_names(view.data["vary"]), view.data["objective"]
    rows = [
        [str(r.number), f"{r.value:.5g}", *(format_value(r.settings[name]) for name in names)]
        for r in view.ranked[:_TERMINAL_TRIALS]
    ]
    lines += _align([["trial", objective, *names.values()], *rows]) if rows else []
    if view.importances:
        shares = ", ".join(f"{names[path]} {share:.2f}" for path, share in view.importances.items())
        lines.append(f"importance (PED-ANOVA, {len(view.ranked)} finished trials): {shares}")
    if view.ranked:
        best = view.ranked[0]
        sets = [*overrides, *make_assignments(best.settings), "training.seed=2"]
        words = [word for text in sets for word in ("--set", text)]
        lines.append(f"best: trial {best.number} in {best.run.path}")
        lines.append(f"train it with another seed: {shell_command('train', source, *words)}")
    lines.append(f"written to {path / 'search.html'} and .csv")
    return lines


def _headline(view: SearchView) -> str:
    if not view.ranked:
        return "No trial has finished."
    best = view.ranked[0]
    return (
        f"Best: trial {best.number} with {view.data['objective']} {best.value:.5g} "
        f"at {describe_values(best.settings)}."
    )


def _count_states(records: list[TrialRecord]) -> str:
    states = [record.state for record in records]
    counts = (f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(records)} trials: {', '.join(counts)}" if records else "no trial"


def _trial_table(view: SearchView, records: list[TrialRecord], title: str) -> TableView:
    names = short_names(view.data["vary"])
    heads = ["trial", "state", view.data["objective"], *names.values(), "KL", "steps"]
    return TableView(title, heads, [_trial_row(record, list(names)) for record in records])


def _trial_row(record: TrialRecord, names: list[str]) -> list[str]:
    last = record.run.last_record() or {}
    return [
        str(record.number),
        record.state,
        "–" if record.value is None else f"{record.value:.5g}",
        *(
            format_value(record.settings[name]) if name in record.settings else "–"
            for name in names
        ),
        f"{last['kl']:.2f}" if last else "–",
        f"{last['step']:,}" if last else "–",
    ]


def _figures(view: SearchView) -> list[FigureView]:
    """Return the figures that the finished trials allow."""
    embedder, figures = FigureEmbedder(), []
    finished = sorted(view.ranked, key=lambda record: record.number)
    values = [record.value or 0.0 for record in finished]
    names = short_names(view.data["vary"])
    logarithmic = [name for path, name in names.items() if view.data["vary"][path].endswith(":log")]
    settings = {
        name: [record.settings[path] for record in finished] for path, name in names.items()
    }
    if finished:
        numbers = [record.number for record in finished]
        history = plots.plot_history(numbers, values, view.label, view.better)
        figures.append(embedder.embed(history, "Value of every finished trial."))
    if view.importances:
        shares = {names[path]: share for path, share in view.importances.items()}
        figures.append(embedder.embed(plots.plot_importances(shares), _IMPORTANCE))
    if len(finished) > 1:
        slices = plots.plot_slices(settings, values, view.label, logarithmic)
        figures.append(embedder.embed(slices, "Objective against each setting; later is darker."))
        parallel = plots.plot_parallel(settings, values, view.label, logarithmic, view.better)
        figures.append(
            embedder.embed(
                parallel, "Every finished trial as a line. The worst quarter has one colour."
            )
        )
    return figures + _curve_figures(view, embedder)


def _curve_figures(view: SearchView, embedder: FigureEmbedder) -> list[FigureView]:
    """Return the validation curves of all trials, if there are any."""
    column = view.data["prune"] if view.data["prune"] in CURVES else "elbo"
    curves, stopped = {}, []
    for record in view.records:
        points = record.run.validations()
        if points:
            steps, values = [p["step"] for p in points], [p[column] for p in points]
            curves[record.number] = steps, values
            stopped += [record.number] if record.state == "pruned" else []
    if not curves:
        return []
    best = view.ranked[0].number if view.ranked else None
    figure = plots.plot_validation_curves(curves, f"{column} of held-out examples", best, stopped)
    caption = "Validation curve of every trial. A cross marks where a trial was pruned."
    return [embedder.embed(figure, caption)]


def _importance_note(view: SearchView) -> str:
    if view.importances:
        return ""
    return "The importance of the settings is shown from ten finished trials on."


def _commands(view: SearchView) -> list[str]:
    """Return the commands of the best trials, which are those of the search itself."""
    commands = []
    for record in view.ranked[:1]:
        commands.append(str(record.run.manifest().get("command", "")))
        commands.append(shell_command("report", record.run.path))
    return commands


def _align(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table whose columns have the width of their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
