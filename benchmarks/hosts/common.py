"""Shared parts of the host benchmarks: score runs, write them as JSON, read arguments.

A script `benchmarks/hosts/NAME.py` trains a tiny model of a host under our controller and under the
host's own one, and writes `results/hosts/NAME.json`:

    entries = []
    for target in (0.5, 1.0, 2.0):
        runs = [score_run("Auto", seed, target, measured, weight) for seed in arguments.seeds]
        entry = make_entry("TRL GRPO", "trl", "policy entropy", "nats per token", target, runs)
        entries.append(entry)
    save_entries("trl", entries, arguments.out)

A script must not have the name of a package that it or another script imports.

`figure.py` draws all files of `results/hosts` and writes their table.
"""

import argparse
import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[2] / "results" / "hosts"
OURS = "Auto"  # method name of our controller
_POINTS = 150  # of a trace in the JSON file
_WINDOWS = 50  # of a running mean in a run: the mean of 2 % of the steps has to stay in the band


def score_run(
    method: str,
    seed: int,
    target: float,
    measured: Sequence[float],
    weight: Sequence[float],
    *,
    every: int = 1,
    scale: float | None = None,
    window: int | None = None,
) -> dict[str, Any]:
    """Return the record of one run: thinned trace, error at the end and settling steps.

    The error is that of the mean over the last fifth. A run is settled from the step on at which
    running means over 2 % of the run stay within 5 % of the target, to the end.

    Args:
        method: `OURS`, or the name of the host's own controller.
        seed: Seed of the run.
        target: Set point.
        measured: Controlled quantity at every step.
        weight: Weight at every step.
        every: Optimiser steps between two values.
        scale: Size that errors are relative to. The default is |target|.
        window: Values of a running mean, instead of 2 % of the run. Use it where the noise of
            batches alone would leave the band.
    """
    values = np.asarray(measured, dtype=np.float64)
    scale = abs(target) if scale is None else scale
    relative = (values - target) / scale
    error = float(relative[-max(1, len(values) // 5) :].mean())
    steps, means = _thin(values, every)
    _, weights = _thin(np.asarray(weight, dtype=np.float64), every)
    return {
        "method": method,
        "seed": seed,
        "steps": steps,
        "measured": means,
        "weight": weights,
        "error": error if math.isfinite(error) else None,
        "settled": _settling_step(relative, 0.05, every, window),
        "settled_10": _settling_step(relative, 0.10, every, window),
    }


def make_entry(
    host: str,
    packages: str,
    quantity: str,
    unit: str,
    target: float,
    runs: list[dict[str, Any]],
    note: str = "",
) -> dict[str, Any]:
    """Return the entry of one host, quantity and target.

    Args:
        host: Name of the host, the same in all of its entries.
        packages: Installed packages whose versions are recorded, separated by spaces. May be empty.
        quantity: Controlled quantity.
        unit: Unit of the quantity.
        target: Set point.
        runs: Records of `score_run`.
        note: Model and data in a few words, and what the host's own controller is.
    """
    versions = {name: version(name) for name in [*packages.split(), "torch"]}
    return {
        "host": host,
        "version": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "quantity": quantity,
        "unit": unit,
        "target": target,
        "runs": runs,
        "note": note,
    }


def save_entries(name: str, entries: list[dict[str, Any]], folder: Path = RESULTS) -> None:
    """Write the entries of a host to `NAME.json` and print a line for each run.

    Args:
        name: Name of the file, without suffix.
        entries: Entries of `make_entry`.
        folder: Folder of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(entries, separators=(",", ":")) + "\n")
    for entry in entries:
        for run in entry["runs"]:
            error = "diverged" if run["error"] is None else f"{run['error']:+.1%}"
            print(
                f"{entry['host']}, {entry['quantity']} {entry['target']:g}, {run['method']}, "
                f"seed {run['seed']}: error {error}, settled to 5 % {run['settled']}, "
                f"to 10 % {run['settled_10']}",
                flush=True,
            )


def parse_arguments(description: str | None, seeds: int = 3) -> argparse.Namespace:
    """Parse `--seeds N` and `--out FOLDER`. `seeds` is returned as a range.

    Args:
        description: Help text of the command.
        seeds: Default number of seeds.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="number of seeds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    arguments.seeds = range(arguments.seeds)
    return arguments


def _thin(values: np.ndarray, every: int) -> tuple[list[int], list[float | None]]:
    """Return the last step and the mean of each of at most 150 blocks. NaN becomes None."""
    blocks = np.array_split(values, min(_POINTS, len(values)))
    steps = np.cumsum([len(block) for block in blocks]) * every
    means = [float(f"{block.mean():.5g}") for block in blocks]
    return steps.tolist(), [mean if math.isfinite(mean) else None for mean in means]


def _settling_step(relative: np.ndarray, band: float, every: int, window: int | None) -> int | None:
    """Return the step from which running means stay within the band, None if they do not."""
    window = max(1, len(relative) // _WINDOWS) if window is None else window
    means = np.convolve(relative, np.full(window, 1 / window), mode="valid")
    outside = np.flatnonzero(~(np.abs(means) <= band))  # also true for NaN
    first = 0 if len(outside) == 0 else int(outside[-1]) + 1
    return None if first == len(means) else (first + window) * every
