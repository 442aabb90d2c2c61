"""Write the table of full-length runs of `fresh_seeds.py`, draw their figure and write their page.

    python benchmarks/fresh_seeds_full_report.py results/disentangling --packed packed/runs.json.gz
    python benchmarks/fresh_seeds_full_report.py results/disentangling

The first command writes `fresh-seeds-full.csv` and `fresh-seeds-full-logs.json.gz`. Both commands
draw `fresh-seeds-full.png` and `.svg` and print the statistics. `--page` also writes
`fresh-seeds-full.md` with the table, to be edited. Needs scipy (`pip install scipy`), which
controlvae does not depend on.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from figure_style import BLUE, GREEN, GREY, RED, new_figure, save_figure
from fresh_seeds_report import SCORE_PATHS, exact_interval, format_nats, look_up, select
from fresh_seeds_rules import MIN_SEPARATION, MIN_SHARE_OF_MEDIAN, RULE_STEP, separation
from matplotlib.axes import Axes

METHODS = {"shapes2d-control-18": "KL = 18", "shapes2d-staggered-18": "KL = 18, staggered latents"}
COLOURS = (BLUE, GREEN)
EARLY_STEP = 100_000  # of the fifty seeds in fresh-seeds.csv
LOG_LINES = 200  # kept of each run
EARLY_LINES = (30_000, 60_000, 80_000, 100_000)  # kept as well
LOW_MIG = 0.5  # the bound for a preset that never fails
TABLE = ("mig", "rmig", "dci_disentanglement", "sap", "factor_vae", "reconstruction_10000_images")
PRINTED = (*TABLE, "mig_orientation", "beta_vae", "modularity", "kl", "beta", "separation_60000")
EARLY_CRITERIA = {
    "failed_label_free": f"S < {MIN_SEPARATION} at step {RULE_STEP:,}",
    "failed_mig_100000": "MIG at step 100,000 below 0.8 of the median of fifty seeds",
}
PAGE = """# Fresh seeds at full length

None of these seeds was used for tuning. Their number and the rules were fixed, and predictions
written down, before the runs ([lab notebook](../../docs/development/notebook/2026-11-18.md)).
A seed **fails to disentangle** if its MIG at the end is below 0.8 of its row's median.

{table}

Mean ± sd; median. MIG and RMIG on all 737,280 images, DCI, SAP and FactorVAE score on 20,000,
reconstruction on 10,000, in nats per image. [Every seed](fresh-seeds-full.csv).
[Logs](fresh-seeds-full-logs.json.gz): about 200 lines of each run.

![MIG of each seed, S and reconstruction](fresh-seeds-full.png)

## Does the beginning predict the end?

{early}

## How it was run

```text
bash benchmarks/fresh_seeds_full.sh packed 565            # each command had a time limit
bash benchmarks/fresh_seeds_full.sh packed 570 --weights
bash benchmarks/fresh_seeds_full.sh packed 400 --stop --weights
python benchmarks/fresh_seeds_full_report.py results/disentangling \\
  --packed packed/runs.json.gz --page
```
"""
Row = dict[str, str]


def main() -> None:
    """Write, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packed", type=Path, help="runs.json.gz of `fresh_seeds.py pack`")
    parser.add_argument("--page", action="store_true", help="write fresh-seeds-full.md")
    args = parser.parse_args()
    table = args.folder / "fresh-seeds-full.csv"
    if args.packed:
        packed = json.loads(gzip.decompress(args.packed.read_bytes()))
        packed = [run for run in packed if "gpu" in run and run["preset"] in METHODS]
        medians = read_early_medians(args.folder / "fresh-seeds.csv")
        write_table(packed, medians, table)
        write_logs(packed, args.folder / "fresh-seeds-full-logs.json.gz")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    draw_figure(rows, args.folder / "fresh-seeds-full")
    for preset in METHODS:
        if len(select(rows, preset, "seed")):
            print_statistics(rows, preset)
    early = describe_early_criteria(rows)
    print("\n" + "\n".join(early))
    if args.page:
        page = PAGE.format(table=format_table(rows), early="\n".join(early))
        (args.folder / "fresh-seeds-full.md").write_text(page)


def read_early_medians(path: Path) -> dict[str, float]:
    """Return the median MIG of fifty seeds at step 100,000 by preset."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {preset: float(np.median(select(rows, preset, "mig"))) for preset in METHODS}


def write_table(packed: list[dict[str, Any]], early_medians: dict[str, float], path: Path) -> None:
    """Write a row per run.

    Args:
        packed: Measured runs of `runs.json.gz`.
        early_medians: Median MIG at step 100,000 by preset.
        path: CSV file to write.
    """
    packed.sort(key=lambda run: (list(METHODS).index(run["preset"]), run["seed"]))
    rows = []
    for preset in METHODS:
        runs = [run for run in packed if run["preset"] == preset]
        if runs:
            median = float(np.median([look_up(run, "gpu.mig.score") for run in runs]))
            rows += [make_row(run, median, early_medians[preset]) for run in runs]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def make_row(run: dict[str, Any], median: float, early_median: float) -> dict[str, Any]:
    """Return the table's row of a packed run.

    Args:
        run: Packed run.
        median: Median MIG of its preset at the end.
        early_median: Median MIG of its preset at step 100,000.
    """
    step, log = run["gpu"]["step"], {line["step"]: line for line in run["log"]}
    last_tenth = [line for line in run["log"] if line["step"] > 0.9 * step]
    nats, mig = log[RULE_STEP]["kl_per_latent"], look_up(run, "gpu.mig.score")
    early = look_up(run, f"snapshots.{EARLY_STEP}.mig.score")
    row: dict[str, Any] = {"preset": run["preset"], "seed": run["seed"], "steps": step}
    row |= {
        name: round(float(np.mean([line[name] for line in last_tenth])), 5)
        for name in ("kl", "beta", "reconstruction")  # mean of the last tenth
    }
    row |= {
        "kl_per_latent": format_nats(sorted(run["gpu"]["kl_per_latent"], reverse=True)),
        "kl_per_latent_60000": format_nats(sorted(nats, reverse=True)),
        "separation_60000": round(separation(nats), 4),
        "separation_100000": round(separation(log[EARLY_STEP]["kl_per_latent"]), 4),
        "mig_100000": "" if early is None else f"{early:.6g}",
        "failed_label_free": int(separation(nats) < MIN_SEPARATION),
        "failed_mig_100000": (
            "" if early is None else int(early < MIN_SHARE_OF_MEDIAN * early_median)
        ),
        "failed_mig": int(mig < MIN_SHARE_OF_MEDIAN * median),
        "mig_below_0.5": int(mig < LOW_MIG),
        "images": run["gpu"]["images"],
    }
    for name, path in SCORE_PATHS.items():
        value = look_up(run, path)
        row[name] = "" if value is None else f"{value:.6g}"
    return row


def write_logs(packed: list[dict[str, Any]], path: Path) -> None:
    """Write about 200 lines of each run's log, at equal distances, and some early ones."""
    thinned = [{**run, "log": thin_log(run["log"])} for run in packed]
    kept = [{name: run[name] for name in ("preset", "seed", "log")} for run in thinned]
    content = json.dumps(kept, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content, mtime=0))


def thin_log(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return about 200 lines of a log, its last line and the early ones."""
    stride = max(1, len(log) // LOG_LINES)
    last = log[-1:]
    return [
        line
        for number, line in enumerate(log, start=1)
        if number % stride == 0 or line["step"] in EARLY_LINES or line in last
    ]


def draw_figure(rows: list[Row], path: Path) -> None:
    """Draw MIG of each seed, S against MIG, and reconstruction against MIG.

    Args:
        rows: Rows of `fresh-seeds-full.csv`.
        path: Files to write, without suffix.
    """
    figure, axes = new_figure(2.6, 1, 3)
    left, middle, right = axes[0]
    for place, (preset, label) in enumerate(METHODS.items()):
        own = [row for row in rows if row["preset"] == preset]
        if not own:
            continue
        mig = select(rows, preset, "mig")
        failed = select(rows, preset, "failed_mig") > 0
        across = place + np.linspace(-0.3, 0.3, len(mig))
        draw_points(left, (across, mig, failed), COLOURS[place], label)
        left.hlines(np.median(mig), place - 0.4, place + 0.4, color="black", lw=0.8)
        separations = select(rows, preset, "separation_60000")
        draw_points(middle, (separations, mig, failed), COLOURS[place])
        reconstruction = select(rows, preset, "reconstruction_10000_images")
        draw_points(right, (reconstruction, mig, failed), COLOURS[place])
    left.set_xticks(range(len(METHODS)), ["KL = 18", "staggered"])
    left.set(ylabel="MIG at the end", xlim=(-0.6, len(METHODS) - 0.4))
    left.set_title("(a) MIG of each seed, in order")
    middle.axvline(MIN_SEPARATION, color=GREY, lw=0.7, ls=":")
    middle.set(xlabel=f"S at step {RULE_STEP:,}", ylabel="MIG at the end", xlim=(-0.04, 1.04))
    middle.set_title("(b) label-free statistic")
    right.set(xlabel="reconstruction, nats per image", ylabel="MIG at the end")
    right.set_title("(c) reconstruction")
    for one in (left, middle, right):
        one.axhline(LOW_MIG, color=GREY, lw=0.7, ls=":")
        one.set_ylim(0, 0.7)
    left.scatter([], [], s=18, color=RED, marker="x", lw=1.1, label="failed")
    figure.legend(loc="outside lower center", ncols=3)
    save_figure(figure, path)


def draw_points(
    axes: Axes, points: tuple[np.ndarray, np.ndarray, np.ndarray], colour: str, label: str = ""
) -> None:
    """Draw runs as dots and failed ones as crosses.

    Args:
        axes: Axes to draw on.
        points: x, y and the mask of failed runs.
        colour: Colour of the good runs.
        label: Label in the legend.
    """
    x, y, failed = points
    axes.scatter(x[~failed], y[~failed], s=12, color=colour, lw=0, label=label or None)
    axes.scatter(x[failed], y[failed], s=18, color=RED, marker="x", lw=1.1)


def print_statistics(rows: list[Row], preset: str) -> None:
    """Print failures with their intervals, then mean ± sd, median and range of each score."""
    own = [row for row in rows if row["preset"] == preset]
    steps = sorted({int(row["steps"]) for row in own})
    print(
        f"\n{preset}: seeds {own[0]['seed']} to {own[-1]['seed']}, {len(own)} runs, steps {steps}"
    )
    for rule in ("failed_mig", "mig_below_0.5", "failed_label_free", "failed_mig_100000"):
        seeds = [row["seed"] for row in own if row[rule] == "1"]
        print(f"  {rule}: {len(seeds)} ({exact_interval(len(seeds), len(own))}) {' '.join(seeds)}")
    for name in PRINTED:
        values = np.array([float(row[name]) for row in own if row[name]])
        if len(values):
            print(f"  {name}: {summarise(values, 4)}, {values.min():.3f} to {values.max():.3f}")


def summarise(values: np.ndarray, digits: int) -> str:
    """Return mean ± standard deviation and median as text."""
    spread = values.std(ddof=1) if len(values) > 1 else float("nan")
    return f"{values.mean():.{digits}f} ± {spread:.{digits}f}; {np.median(values):.{digits}f}"


def describe_early_criteria(rows: list[Row]) -> list[str]:
    """Return a line per early criterion: how well it predicts the end."""
    failed = np.array([row["failed_mig"] == "1" for row in rows])
    lines = []
    for rule, name in EARLY_CRITERIA.items():
        if all(row[rule] for row in rows):
            flagged = np.array([row[rule] == "1" for row in rows])
            lines.append(
                f"- {name} finds {(flagged & failed).sum()} of {failed.sum()} runs that fail at "
                f"the end and flags {(flagged & ~failed).sum()} of {(~failed).sum()} good ones."
            )
    return lines


def format_table(rows: list[Row]) -> str:
    """Return the table of the page: failures, then mean ± sd and median of each score."""
    lines = [
        "| row | seeds | steps | failed | MIG | RMIG | DCI | SAP | FactorVAE | reconstruction |",
        "| --- | --- | ---: | ---: |" + " ---: |" * len(TABLE),
    ]
    for preset, label in METHODS.items():
        own = [row for row in rows if row["preset"] == preset]
        if not own:
            continue
        failed = sum(row["failed_mig"] == "1" for row in own)
        cells = []
        for name in TABLE:
            values = np.array([float(row[name]) for row in own if row[name]])
            digits = 1 if name.startswith("reconstruction") else 3
            cells.append(summarise(values, digits) if len(values) else "–")
        steps = min(int(row["steps"]) for row in own)
        seeds = f"{own[0]['seed']}–{own[-1]['seed']}"
        head = f"| {label} | {seeds} | {steps:,} | {failed} of {len(own)}"
        lines.append(f"{head} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
