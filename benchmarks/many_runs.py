"""Make a folder of many runs from one small run, with logs that differ.

python benchmarks/many_runs.py RUN FOLDER --count 300 --lines 500
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GROUPS = 10  # folders; each has one preset and several seeds


def make_runs(template: Path, out: Path, count: int = 300, lines: int = 500) -> list[Path]:
    """Copy a run `count` times, each with its own seed and log. Return the new folders.

    Args:
        template: Finished run to copy.
        out: Folder of the new runs.
        count: Number of runs.
        lines: Lines of each log.
    """
    experiment = json.loads((template / "experiment.json").read_text())
    records = [json.loads(line) for line in (template / "log.jsonl").read_text().splitlines()]
    every = experiment["experiment"]["training"]["log_every"]
    runs = []
    for number in range(count):
        run = out / f"group-{number % GROUPS}" / f"seed-{number // GROUPS + 1}"
        shutil.copytree(template, run, ignore=shutil.ignore_patterns("log.jsonl", "figures"))
        experiment["experiment"]["training"] |= {"seed": number, "steps": lines * every}
        (run / "experiment.json").write_text(json.dumps(experiment))
        log = "".join(json.dumps(each) + "\n" for each in _vary(records, lines, every, number))
        (run / "log.jsonl").write_text(log)
        (run / "events.jsonl").write_text(_events(lines * every))
        runs.append(run)
    return runs


def _vary(
    records: list[dict[str, Any]], lines: int, every: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log: the template stretched over it, with separate noise."""
    noise = random.Random(seed)
    for line in range(lines):
        record = dict(records[line * len(records) // lines])
        scale = 1 + 0.02 * noise.gauss(0, 1) + 0.1 * math.sin(seed)
        for name in ("kl", "reconstruction", "beta"):
            record[name] *= scale
        record["kl_per_latent"] = [kl * scale for kl in record["kl_per_latent"]]
        yield record | {
            "step": (line + 1) * every,
            "elbo": -record["reconstruction"] - record["kl"],
        }


def _events(steps: int) -> str:
    names = ((0, "started"), (steps // 2, "saved"), (steps, "saved"), (steps, "finished"))
    events = [{"time": "2026-01-01T00:00:00+00:00", "event": n, "step": s} for s, n in names]
    return "".join(json.dumps(event) + "\n" for event in events)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--lines", type=int, default=500)
    options = parser.parse_args()
    made = make_runs(options.run, options.folder, options.count, options.lines)
    print(f"{len(made)} runs in {options.folder}")
