"""`bench`: the table, as it grows."""

import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from rich.live import Live
from rich.table import Table

from controlvae.errors import UserError
from controlvae.lab.bench.training_speed import ROUNDS, Result, bench, gemm_gflops, has_pythae
from controlvae.lab.cli.progress import wide_console
from controlvae.lab.config import Experiment
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.config.experiment import Precision
from controlvae.lab.io import write_json

HEADS = (
    "what",
    "models",
    "batch",
    "pixels",
    "precision",
    "steps/s",
    "seed-steps/s",
    "against plain",
    "images/s",
    "GiB",
)
OF_SENTENCES = {
    "pixels": "tokens",
    "images/s": "tokens/s",
}  # what these are called where examples are sentences


class Lists(NamedTuple):
    """What to vary."""

    models: tuple[int, ...]
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    precisions: tuple[str, ...]

    @classmethod
    def parse(cls, models: str, batches: str, precisions: str, sizes: str) -> "Lists":
        wanted = tuple(word.strip() for word in precisions.split(",") if word.strip())
        for word in wanted:
            if word not in get_args(Precision):
                raise UserError(
                    f"--precisions takes {', '.join(get_args(Precision))}, got {word!r}"
                )
        numbers = (
            _numbers("--models", models),
            _numbers("--batches", batches),
            _numbers("--sizes", sizes),
        )
        return cls(*numbers, wanted or ("fp32",))


def show(
    experiment: Experiment,
    device: torch.device,
    lists: Lists,
    seconds: float,
    out: Path | None,
    root: Path | None,
) -> None:
    """Prints the table line by line and the machine it was measured on."""
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    )
    count = torch.get_num_threads()
    threads = f", {count} thread{'' if count == 1 else 's'}" if device.type == "cpu" else ""
    title = f"{experiment.name} on {machine}{threads}, torch {torch.__version__}"
    table = Table(title=title, box=None, title_justify="left")
    pictures = isinstance(experiment.data, ImageSettings)
    for head in HEADS if pictures else [OF_SENTENCES.get(head, head) for head in HEADS]:
        table.add_column(head, justify="left" if head in ("what", "precision") else "right")
    results: list[Result] = []
    rounds = bench(experiment, device, **lists._asdict(), seconds=seconds, root=root)
    console = wide_console()
    if device.type == "cpu":
        table.caption = f"The lines to be compared take {ROUNDS} turns of {seconds:g} s each; then all of them appear."
    with Live(table, console=console, refresh_per_second=4):
        for result in rounds:
            table.caption = None
            results.append(result)
            table.add_row(*_cells(result, results[0]))
            _keep(
                out, title, results
            )  # as it grows: one line can take minutes, and a job may end before the last
            if not console.is_terminal:
                print("  ".join(_cells(result, results[0])), file=sys.stderr, flush=True)
    if not console.is_terminal:
        console.line()  # which it leaves out in a file
    rate = gemm_gflops(device)
    _keep(out, title, results, gemm_gflops=rate)
    if pictures and not has_pythae():
        print(
            "pythae's trainer is left out, as it is not installed: pip install 'controlvae[bench]'"
        )
    print(f"A 2048 x 2048 float32 product runs at {rate:,.0f} GFLOP/s here.")


def _keep(out: Path | None, title: str, results: list[Result], **more: float) -> None:
    if out is not None:
        content = {"title": title, **more, "results": [asdict(result) for result in results]}
        write_json(out, content)


def _cells(result: Result, plain: Result) -> list[str]:
    size = str(result.pixels) if result.tokens is None else f"{result.tokens:.1f}"
    alike = (result.batch, result.pixels) == (
        plain.batch,
        plain.pixels,
    )  # else the work of a step differs
    ratio = f"{result.seed_steps_per_second / plain.seed_steps_per_second:,.2f} x" if alike else "–"
    return [
        result.what,
        str(result.models),
        str(result.batch),
        size,
        result.precision,
        f"{result.steps_per_second:,.1f}",
        f"{result.seed_steps_per_second:,.1f}",
        ratio,
        f"{result.inputs_per_second:,.0f}",
        f"{result.memory_gib:.2f}",
    ]


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise UserError(f"{option} takes whole numbers with commas between, got {text!r}") from None
    if any(number < 1 for number in numbers):
        raise UserError(f"{option} must be positive, got {text!r}")
    return numbers
