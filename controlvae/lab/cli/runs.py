"""A run opened by a command: the model, its metrics and pictures, and how metrics are shown."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controlvae.diagnostics.collapse import constant_posterior_warning, describe_used_latents
from controlvae.errors import FactorsError, UserError, shell_command
from controlvae.lab.cli.device import pick_device
from controlvae.lab.cli.progress import simple_bar, wide_console
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.data.dataset import ImageDataset
from controlvae.lab.evaluation.evaluate import evaluate as measure
from controlvae.lab.evaluation.evaluate import is_sufficient
from controlvae.lab.evaluation.iwae import IMPORTANCE_SAMPLES
from controlvae.lab.evaluation.registry import entry_name
from controlvae.lab.plots.figure_files import read_step, save_figure, save_pixels
from controlvae.lab.plots.image_grid import save_reconstructions
from controlvae.lab.plots.mutual_information import plot_mutual_information
from controlvae.lab.plots.samples import make_sample_grid
from controlvae.lab.plots.traversal import plot_traversal
from controlvae.lab.reports.dialog_section import RESPONSES_SHOWN, UTTERANCES_SHOWN
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, entry, look_up
from controlvae.lab.runs.loaded import LoadedRun, load_run, must_have_examples

EXAMPLES = 10_000  # that a run is measured on unless a command says otherwise
_LISTED = 10  # numbers of a list in a terminal
_FEATURES = 2_048  # of Inception
_BY_FACTOR = ("per_factor", "entropies")


def open_at(path: Path, device: str, root: Path | None, factors: str | None = None) -> LoadedRun:
    return open_measured(RunFolder(path), pick_device(device), root, factors)


def open_measured(
    folder: RunFolder, device: torch.device, root: Path | None, factors: str | None = None
) -> LoadedRun:
    """A run, with the table of factors that is given, or else that it was measured with before, if it is there."""
    before = factors_before(folder) if factors is None else None
    if before is not None and before != getattr(folder.experiment().data, "factors", None):
        try:
            return load_run(folder, root=root, device=device, factors=before)
        except FactorsError as error:
            print(
                f"controlvae: {folder.path}: without the factors it was measured with: {error}",
                file=sys.stderr,
            )
    return load_run(folder, root=root, device=device, factors=factors)


def factors_before(folder: RunFolder) -> str | None:
    """The table of factors that a run was measured with."""
    found: str | None = entry(folder.metrics() or {}, "ground_truth.table")
    return found


def evaluate(
    opened: LoadedRun,
    examples: int,
    fid: int | None = None,
    iwae: int = IMPORTANCE_SAMPLES,
    *,
    place: str = "",
) -> dict[str, Any]:
    """Every metric that applies, with a bar or a line, and the heat map of what latents tell.

    `place` is which of several runs it is, such as `1 of 3`.
    """
    title = f"evaluating {opened.folder.path}" + (f" ({place})" if place else "")
    if not sys.stderr.isatty():  # a terminal has its bar
        print(f"controlvae: {title}, step {opened.step:,}", file=sys.stderr, flush=True)
    with simple_bar(title) as progress:
        metrics = measure(opened, examples, progress, fid_images=fid, importance_samples=iwae)
    if (words := constant_posterior_warning(metrics["kl"], metrics["active_units"])) is not None:
        typer.echo(f"controlvae: {opened.folder.path}: {words}", err=True)
    measured = look_up(metrics, "fid.pictures")
    if fid and measured is not None and measured < fid:
        few = f"; of fewer than {_FEATURES:,} it says little" if measured < _FEATURES else ""
        split = metrics["fid"]["split"]
        typer.echo(
            f"controlvae: note: FID is of {measured:,} pictures, all there are ({split}){few}",
            err=True,
        )
    _draw_information(opened.folder, metrics)
    return metrics


def _draw_information(folder: RunFolder, metrics: Mapping[str, Any]) -> None:
    picture = folder.figures / "information.png"
    if (figure := plot_mutual_information(metrics)) is not None:
        save_figure(figure, picture)
    else:
        picture.unlink(missing_ok=True)  # of another evaluation


def evaluate_run(
    path: Path,
    device: torch.device,
    root: Path | None,
    examples: int = EXAMPLES,
    fid: int | None = None,
    *,
    place: str = "",
    iwae: bool = True,
) -> None:
    """Metrics and pictures of a run, into its folder. What is there stays if no poorer, or its data is gone.

    What was measured thoroughly is so measured again. `iwae` says whether that bound will be looked at.
    """
    folder = RunFolder(path)
    try:
        opened = open_measured(folder, device, root)
        must_have_examples(opened)
    except UserError as error:
        if folder.evaluated_step() != latest_step(folder.checkpoints):
            raise
        print(f"controlvae: {path}: measured before, kept: {error}", file=sys.stderr)
        return
    kept = folder.metrics()
    kept = kept if kept is not None and kept["step"] == opened.step else None
    if kept is not None and kept.get("thorough"):
        opened = replace(opened, thorough=True)
    lost = (
        factors_before(folder) is not None and opened.examples.factors is None
    )  # scores cannot be worked out anew
    if kept is not None and (
        lost or is_sufficient(kept, opened.step, examples, fid, device, iwae=iwae)
    ):
        asked = [] if fid is None else ["--fid", fid]
        anew = "" if lost else f"; anew with: {shell_command('evaluate', path, *asked)}"
        print(f"controlvae: {path}: measured before, kept{anew}", file=sys.stderr)
        _draw_information(folder, kept)
    else:
        evaluate(opened, examples, fid, place=place)
    if isinstance(opened.examples, ImageDataset):  # sentences are in metrics.json
        figures, step = opened.folder.figures, opened.step
        save_pixels(make_sample_grid(opened), figures / "samples.png", step=step)
        save_reconstructions(opened, figures / "reconstruction.png")
        save_figure(plot_traversal(opened), figures / "traversal.png", step=step)


def _has_pictures(folder: RunFolder, step: int) -> bool:
    """Whether those of this step are there; the traversal is drawn last."""
    pictures = isinstance(folder.experiment().data, ImageSettings)
    return not pictures or read_step(folder.figures / "traversal.png") == step


def evaluate_new(
    folders: Iterable[RunFolder],
    device: torch.device,
    root: Path | None,
    fid: int | None = None,
    *,
    iwae: bool = True,
) -> None:
    """Once for each checkpoint: metrics of an older one, or poorer ones, are made anew. What is done stays done."""
    due = [
        folder
        for folder in folders
        if (step := latest_step(folder.checkpoints)) is not None
        and not (
            _has_pictures(folder, step)
            and is_sufficient(folder.metrics(), step, EXAMPLES, fid, device, iwae=iwae)
        )
    ]
    for done, folder in enumerate(due):
        try:
            evaluate_run(
                folder.path, device, root, fid=fid, place=f"{done + 1} of {len(due)}", iwae=iwae
            )
        except KeyboardInterrupt:
            typer.echo(
                f"stopped while evaluating, {done} of {len(due)} done; go on with: the same command"
            )
            raise typer.Exit(130) from None


def name_unknown(words: Sequence[str]) -> None:
    """Says which words of a person's own a model does not know."""
    if words:
        typer.echo(f"(unknown to it: {', '.join(words)})", err=True)


def show_metrics(title: str, metrics: Mapping[str, Any]) -> None:
    """Every number and what it is of; words that were said under the same name are not said again."""
    best, said = metrics.get("best", {}), set[str]()
    spoken = metrics.get("dialog") or metrics.get("text", {})
    # By the line: each perplexity beside what it is of.
    of_all = {
        **{
            name: value for name, value in metrics.items() if name not in ("dialog", "text", "best")
        },
        **spoken,
    }
    for words, part in ((title, of_all), (f"{title}, the best by validation", best)):
        table = Table(title=escape(words), show_header=False, box=None, title_justify="left")
        for name, value in part.items():
            again = (
                set() if name == "ground_truth" else said
            )  # the split of the scores, though others may share it
            if name not in ("samples", "read_back", "thorough") and (
                shown := _cell(name, value, again)
            ):
                table.add_row(entry_name(name), escape(shown))
            if name == "kl_per_latent" and value:
                table.add_row("used latents", describe_used_latents(value))
        if part:
            Console(soft_wrap=True).print(table)
    _show_factors(metrics)
    if "dialog" in metrics:
        _show_responses(spoken["samples"])
    elif "text" in metrics:
        _show_sentences(spoken)


def _show_factors(metrics: Mapping[str, Any]) -> None:
    """What scores are the means of: a row for each factor, a column for each score."""
    scores = {
        name: score["per_factor"]
        for name, score in metrics.items()
        if isinstance(score, dict) and isinstance(score.get("per_factor"), dict)
    }
    if not scores:
        return
    split = metrics.get("ground_truth", {}).get("split")  # codes from elsewhere have none
    table = Table(
        title=escape(f"by factor ({split})" if split else "by factor"),
        box=None,
        title_justify="left",
    )
    table.add_column("")
    for name in scores:  # what DCI has of a single factor is the accuracy of its trees
        heading = entry_name(name) + (", accuracy" if name == "dci" else "")
        table.add_column(heading, justify="right")
    for factor in max(scores.values(), key=len):  # some leave out what is no quantity
        found = [of_factor.get(factor) for of_factor in scores.values()]
        table.add_row(escape(factor), *(format_number(value, 3) for value in found))
    Console(soft_wrap=True).print(table)


def _show_responses(samples: Sequence[Mapping[str, Any]]) -> None:
    """What was said last, what B said then, and what the model says."""
    table = Table(title="responses (B is whoever responds)", title_justify="left", show_lines=True)
    for head in ("context", "what B said", "what the model says"):
        table.add_column(head, overflow="fold")
    for sample in samples:
        said = "\n".join(sample["context"][-UTTERANCES_SHOWN:])
        responses = "\n".join(f"· {response}" for response in sample["responses"][:RESPONSES_SHOWN])
        table.add_row(escape(said), escape(sample["reference"]), escape(responses))
    wide_console().print(table)


def _show_sentences(text: Mapping[str, Any]) -> None:
    """What the model writes, and what it reads in the codes of sentences."""
    table = Table(title="sentences", title_justify="left", show_lines=True)
    for head in ("data", "read back from its code"):
        table.add_column(head, overflow="fold")
    for pair in text["read_back"]:
        table.add_row(escape(pair["sentence"]), escape(pair["read_back"]))
    wide_console().print(table)
    typer.echo(f"written from {text['written_from']}:")
    for line in text["samples"]:
        typer.echo(f"  {line}")


def _cell(name: str, value: object, said: set[str]) -> str:
    """Numbers on one line, words below them."""
    parts = list(_flat(value))
    numbers = [
        f"{path} {_shown(part)}".strip() for path, part in parts if not isinstance(part, str)
    ]
    words = []
    for path, part in parts:
        sentence = f"{path.rpartition(' ')[2] or name}: {part}"
        if isinstance(part, str) and (sentence not in said or not path):
            said.add(sentence)
            words.append(f"{path}: {part}" if path else part)
    lines = [", ".join(numbers), *words] if numbers else words
    return "\n".join(lines) or ("skipped, as above" if parts else "")


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """What a metric consists of, each part under its path in words; matrices are left to metrics.json.

    So is what it has by factor, but for the table of all scores.
    """
    if isinstance(value, dict):
        for inner, part in value.items():
            if inner in _BY_FACTOR:
                continue
            yield from _flat(part, f"{path} {inner}".strip().replace("_", " "))
    elif not (isinstance(value, list) and value and isinstance(value[0], list)):
        yield path, value


def _shown(value: object) -> str:
    match value:
        case None | []:
            return "–"
        case list() if len(value) > _LISTED and all(isinstance(part, float) for part in value):
            largest = " ".join(f"{part:.2f}" for part in sorted(value, reverse=True)[:_LISTED])
            return f"{largest} are the largest of {len(value):,}"
        case list():
            return " ".join(
                f"{part:.2f}" if isinstance(part, float) else str(part) for part in value
            )
        case float():
            return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"
        case int():
            return f"{value:,}"
    return str(value)
