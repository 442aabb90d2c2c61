"""Benchmark table in the terminal, printed as it grows."""

import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from rich.live import Live
from rich.table import Table

from controlvae.errors import UserError
from controlvae.lab.bench.training_speed import (
    ROUNDS,
    BenchResult,
    bench,
    gemm_gflops,
    has_pythae,
)
from controlvae.lab.config import Experiment
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.config.experiment import Precision
from controlvae.lab.io import write_json
from controlvae.lab.reports.metrics_table import wide_console

_HEADINGS = (
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
_TEXT_HEADINGS = {"pixels": "tokens", "images/s": "tokens/s"}  # if examples are sentences

_MAX_NUMBER = 100_000  # of models, examples or pixels: a larger one is a typing error


class BenchLists(NamedTuple):
    """Values to vary."""

    models: tuple[int, ...]
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    precisions: tuple[str, ...]

    @classmethod
    def parse(cls, models: str, batches: str, precisions: str, sizes: str) -> "BenchLists":
        """Parse comma-separated lists.

        Args:
            models: Numbers of models.
            batches: Batch sizes.
            precisions: Names of precisions.
            sizes: Image sizes.

        Raises:
            UserError: If a value is not usable.
        """
        names = tuple(word.strip() for word in precisions.split(",") if word.strip())
        for name in names:
            if name not in get_args(Precision):
                known = ", ".join(get_args(Precision))
                raise UserError(f"--precisions takes {known}, got {name!r}")
        return cls(
            _parse_numbers("--models", models),
            _parse_numbers("--batches", batches),
            _parse_numbers("--sizes", sizes),
            names or ("fp32",),
        )


def show_bench(
    experiment: Experiment,
    device: torch.device,
    lists: BenchLists,
    seconds: float,
    out: Path | None,
    root: Path | None,
) -> None:
    """Run the benchmark, and print its table line by line.

    Args:
        experiment: Experiment to train.
        device: Device to measure.
        lists: Values to vary.
        seconds: Time for each line.
        out: JSON file to write.
        root: Data folder that is searched first.
    """
    title, table = _describe_machine(experiment, device), Table(box=None, title_justify="left")
    table.title = title
    images = isinstance(experiment.data, ImageSettings)
    for name in _HEADINGS:
        heading = name if images else _TEXT_HEADINGS.get(name, name)
        table.add_column(heading, justify="left" if name in ("what", "precision") else "right")
    results: list[BenchResult] = []
    rounds = bench(experiment, device, **lists._asdict(), seconds=seconds, root=root)
    console = wide_console()
    if device.type == "cpu":
        table.caption = (
            f"The lines to compare take {ROUNDS} turns of {seconds:g} s each, then all appear."
        )
    with Live(table, console=console, refresh_per_second=4):
        for result in rounds:
            table.caption = None
            results.append(result)
            table.add_row(*_format_result(result, results[0]))
            # Saved as it grows: a line can take minutes, and the job may end before the last.
            _save(out, title, results)
            if not console.is_terminal:
                print("  ".join(_format_result(result, results[0])), file=sys.stderr, flush=True)
    if not console.is_terminal:
        console.line()  # Live omits it in a file
    rate = gemm_gflops(device)
    _save(out, title, results, gemm_gflops=rate)
    if images and not has_pythae():
        print("pythae's trainer is skipped: pip install 'controlvae[bench]'")
    print(f"A 2048 x 2048 float32 product runs at {rate:,.0f} GFLOP/s here.")


def _describe_machine(experiment: Experiment, device: torch.device) -> str:
    machine, threads = f"{platform.machine()} CPU", ""
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        count = torch.get_num_threads()
        threads = f", {count} thread{'' if count == 1 else 's'}"
    return f"{experiment.name} on {machine}{threads}, torch {torch.__version__}"


def _save(out: Path | None, title: str, results: list[BenchResult], **more: float) -> None:
    if out is not None:
        content = {"title": title, **more, "results": [asdict(result) for result in results]}
        write_json(out, content)


def _format_result(result: BenchResult, plain: BenchResult) -> list[str]:
    size = str(result.pixels) if result.tokens is None else f"{result.tokens:.1f}"
    # With other batches or sizes, a step is a different amount of work.
    ratio = "–"
    if (result.batch, result.pixels) == (plain.batch, plain.pixels):
        ratio = f"{result.seed_steps_per_second / plain.seed_steps_per_second:,.2f} x"
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


def _parse_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise UserError(f"{option} takes whole numbers separated by commas, got {text!r}") from None
    if any(number < 1 for number in numbers):
        raise UserError(f"{option} must be positive, got {text!r}")
    if any(number > _MAX_NUMBER for number in numbers):
        raise UserError(f"{option} must be at most {_MAX_NUMBER:,}, got {text[:80]!r}")
    return numbers
