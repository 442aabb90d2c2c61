"""A run opened by a command: the device, the model, its metrics and pictures, and how metrics are shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controlvae import report
from controlvae.cli.bars import simple_bar, wide_console
from controlvae.errors import UserError
from controlvae.experiments import RunFolder
from controlvae.report import Trained, open_run, save_figure
from controlvae.report.importance import IMPORTANCE_SAMPLES
from controlvae.report.information import information_figure
from controlvae.report.responses import EACH, LATEST
from controlvae.training.checkpoint import latest_step


def pick_device(name: str) -> torch.device:
    """The device of that name, or the best there is for `auto`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("models are trained on cpu, cuda or mps")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(f"device {name!r} is not available here ({reason}); try --device auto") from None
    return device


def open_at(path: Path, device: str, root: Path | None) -> Trained:
    return open_run(RunFolder(path), root=root, device=pick_device(device))


def evaluate(opened: Trained, examples: int, fid: int | None = None, iwae: int = IMPORTANCE_SAMPLES) -> dict[str, Any]:
    """Every metric that applies, with a bar, and the heat map of what latents tell."""
    with simple_bar(f"evaluating {opened.folder.path}") as progress:
        metrics = report.evaluate(opened, examples, progress, fid_pictures=fid, importance_samples=iwae)
    if (figure := information_figure(metrics)) is not None:
        save_figure(figure, opened.folder.figures / "information.png")
    return metrics


def evaluate_run(
    path: Path, device: torch.device, root: Path | None, examples: int = 10_000, fid: int | None = None
) -> None:
    """Metrics and pictures of a run, into its folder."""
    opened = open_run(RunFolder(path), root=root, device=device)
    evaluate(opened, examples, fid)
    if len(opened.examples.shape) == 3:  # sentences are in metrics.json
        report.save_pixels(report.samples(opened), opened.folder.figures / "samples.png")
        save_figure(report.reconstructions(opened), opened.folder.figures / "reconstruction.png")
        save_figure(report.traversals(opened), opened.folder.figures / "traversal.png")


def evaluate_new(folder: RunFolder, device: torch.device, root: Path | None) -> None:
    """Once for each checkpoint: metrics older than the newest one are made anew."""
    step = latest_step(folder.checkpoints)
    if step is not None and folder.evaluated_step() != step:
        evaluate_run(folder.path, device, root)


def show_metrics(title: str, metrics: dict[str, Any]) -> None:
    table = Table(title=title, show_header=False, box=None, title_justify="left")
    spoken = metrics.get("dialog") or metrics.get("text", {})
    for name, value in metrics.items():
        if value is not spoken:
            table.add_row(name.replace("_", " "), _shown(value))
    for name, value in spoken.items():  # by the line: each perplexity beside what it is of
        if name not in ("samples", "read_back"):
            table.add_row(name.replace("_", " "), _shown(value))
    Console(soft_wrap=True).print(table)
    if "dialog" in metrics:
        _show_responses(spoken["samples"])
    elif "text" in metrics:
        _show_sentences(spoken)


def _show_responses(samples: Sequence[Mapping[str, Any]]) -> None:
    """What was said last, what B said then, and what the model says."""
    table = Table(title="responses", title_justify="left", show_lines=True)
    for head in ("context", "what B said", "what the model says"):
        table.add_column(head, overflow="fold")
    for sample in samples:
        said = "\n".join(sample["context"][-LATEST:])
        responses = "\n".join(f"· {response}" for response in sample["responses"][:EACH])
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


def _shown(value: object) -> str:
    """A metric in a line or two; matrices are left to metrics.json."""
    match value:
        case dict():
            kept = {name: part for name, part in value.items() if not (isinstance(part, list) and part and
                    isinstance(part[0], list))}  # fmt: skip
            return ", ".join(f"{name.replace('_', ' ')} {_shown(part)}" for name, part in kept.items())
        case list():
            return " ".join(f"{part:.2f}" if isinstance(part, float) else str(part) for part in value)
        case float():
            return f"{value:,.4g}"
        case int():
            return f"{value:,}"
    return str(value)
