"""Write the table of packed runs of `fresh_seeds.py`, draw their figure and print their statistics.

    python benchmarks/fresh_seeds_report.py results/disentangling --packed packed/runs.json.gz
    python benchmarks/fresh_seeds_report.py results/disentangling

The first command writes `fresh-seeds.csv` and `fresh-seeds-logs.json.gz`. Both commands draw
`fresh-seeds.png` and `.svg` from these two files and print the numbers of `fresh-seeds.md`.
Needs scipy (`pip install scipy`), which controlvae itself does not depend on.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from fresh_seeds_figure import draw_figure
from fresh_seeds_rules import (
    MIN_R2,
    MIN_SEPARATION,
    MIN_SHARE_OF_MEDIAN,
    RULE_STEP,
    separation,
)
from scipy import stats

METHODS = {  # in the order of the table
    "shapes2d-control-18": "KL = 18",
    "shapes2d-control-16": "KL = 16",
    "shapes2d-staggered-18": "KL = 18,\nstaggered\nlatents",
    "shapes2d-beta-100-matched": "β-VAE,\nequal\nterms",
}
REPEATED = ("shapes2d-control-18", "shapes2d-control-16")  # equal up to step 520,000
LOG_INTERVAL = 2_000  # steps between the log lines that are kept
CSV_STEPS = (30_000, 60_000, 80_000, 100_000)
SCORE_PATHS = {  # columns of the table, and their places in a packed run
    "mig": "gpu.mig.score",
    "mig_scale": "gpu.mig.per_factor.scale",
    "mig_orientation": "gpu.mig.per_factor.orientation",
    "mig_x": "gpu.mig.per_factor.x",
    "mig_y": "gpu.mig.per_factor.y",
    "mig_all_images": "gpu.mig_all.score",
    "rmig": "gpu.rmig.score",
    "rmig_shape": "gpu.rmig.per_factor.shape",
    "rmig_scale": "gpu.rmig.per_factor.scale",
    "rmig_orientation": "gpu.rmig.per_factor.orientation",
    "rmig_x": "gpu.rmig.per_factor.x",
    "rmig_y": "gpu.rmig.per_factor.y",
    "rmig_all_images": "gpu.rmig_all.score",
    "mig_histogram": "cpu.mig_histogram.score",
    "dci_disentanglement": "cpu.dci.disentanglement",
    "dci_completeness": "cpu.dci.completeness",
    "dci_informativeness": "cpu.dci.informativeness",
    "sap": "cpu.sap.score",
    "sap_continuous": "cpu.sap_continuous.score",
    "factor_vae": "cpu.factor_vae_score.score",
    "beta_vae": "cpu.beta_vae_score.score",
    "modularity": "cpu.modularity.score",
    "reconstruction_10000_images": "gpu.reconstruction",
    "kl_10000_images": "gpu.kl",
}
PRINTED = ("mig", "rmig", "dci_disentanglement", "sap", "factor_vae", "beta_vae", "modularity")
Row = dict[str, str]
Log = dict[int, dict[str, Any]]


def main() -> None:
    """Write, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packed", type=Path, help="runs.json.gz of `fresh_seeds.py pack`")
    args = parser.parse_args()
    table, logs = args.folder / "fresh-seeds.csv", args.folder / "fresh-seeds-logs.json.gz"
    if args.packed:
        write_files(json.loads(gzip.decompress(args.packed.read_bytes())), table, logs)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    log_of_run = {
        (run["preset"], run["seed"]): {line["step"]: line for line in run["log"]}
        for run in json.loads(gzip.decompress(logs.read_bytes()))
    }
    row_logs = [log_of_run[row["preset"], int(row["seed"])] for row in rows]
    present = {name: label for name, label in METHODS.items() if len(select(rows, name, "seed"))}
    separations = [
        {step: separation(line["kl_per_latent"]) for step, line in log.items()} for log in row_logs
    ]
    thresholds = (MIN_SEPARATION, MIN_SHARE_OF_MEDIAN, RULE_STEP)
    draw_figure(rows, separations, present, thresholds, args.folder / "fresh-seeds")
    for name in present:
        print_scores(rows, name)
    print_fisher_tests(rows)
    print_rule(rows, separations)
    for name in present:
        print_other_indicators(rows, row_logs, name)
    print_repeat(rows)


def write_files(packed: list[dict[str, Any]], table: Path, logs: Path) -> None:
    """Write a row per run, and its log at every `LOG_INTERVAL` steps.

    Args:
        packed: Content of `runs.json.gz`.
        table: CSV file to write.
        logs: Compressed JSON file to write.
    """
    packed.sort(key=lambda run: (list(METHODS).index(run["preset"]), run["seed"]))
    medians = {
        name: np.median([look_up(run, "gpu.mig.score") for run in packed if run["preset"] == name])
        for name in {run["preset"] for run in packed}
    }
    rows = [make_row(run, float(medians[run["preset"]])) for run in packed]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    thinned = [
        {
            "preset": run["preset"],
            "seed": run["seed"],
            "log": [line for line in run["log"] if line["step"] % LOG_INTERVAL == 0],
        }
        for run in packed
    ]
    content = json.dumps(thinned, separators=(",", ":")).encode()
    logs.write_bytes(gzip.compress(content, mtime=0))


def make_row(run: dict[str, Any], median: float) -> dict[str, Any]:
    """Return the table's row of a packed run; `median` is the median MIG of its preset."""
    log = {line["step"]: line for line in run["log"]}
    last = log[run["gpu"]["step"]]
    row: dict[str, Any] = {"preset": run["preset"], "seed": run["seed"], "steps": last["step"]}
    row |= {name: last[name] for name in ("kl", "beta", "reconstruction")}
    nats, r2 = log[RULE_STEP]["kl_per_latent"], min(look_up(run, "cpu.position_r2"))
    row |= {
        "kl_per_latent_60000": format_nats(sorted(nats, reverse=True)),
        "separation_60000": round(separation(nats), 4),
        "separation_100000": round(separation(last["kl_per_latent"]), 4),
        "failed_label_free": int(separation(nats) < MIN_SEPARATION),
        "failed_mig": int(look_up(run, "gpu.mig.score") < MIN_SHARE_OF_MEDIAN * median),
        "failed_position_r2": int(r2 < MIN_R2),
        "least_position_r2": round(r2, 4),
    }
    for name, path in SCORE_PATHS.items():
        value = look_up(run, path)
        row[name] = "" if value is None else f"{value:.6g}"
    for step in CSV_STEPS:
        row |= {f"{name}_{step}": log[step][name] for name in ("kl", "beta", "reconstruction")}
        row[f"kl_per_latent_raw_{step}"] = format_nats(log[step]["kl_per_latent"])
    return row


def look_up(run: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None if it was not measured."""
    value: Any = run
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def format_nats(nats: list[float]) -> str:
    """Format KL values with three decimals."""
    return " ".join(f"{value:.3f}" for value in nats)


def select(rows: list[Row], preset: str, column: str) -> np.ndarray:
    """Return a column of the runs of one preset."""
    return np.array([float(row[column]) for row in rows if row["preset"] == preset])


def exact_interval(count: int, total: int) -> str:
    """Return the 95 % interval of Clopper and Pearson in per cent."""
    low, high = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def print_scores(rows: list[Row], preset: str) -> None:
    """Print failures with their intervals, then mean ± sd and median of each score."""
    count = len(select(rows, preset, "seed"))
    print(f"\n{preset}: {count} seeds")
    for rule in ("failed_mig", "failed_label_free", "failed_position_r2"):
        failures = int(select(rows, preset, rule).sum())
        print(f"  {rule}: {failures} ({exact_interval(failures, count)})")
    failed = select(rows, preset, "failed_mig") > 0
    for name in (*PRINTED, "reconstruction_10000_images", "kl", "beta"):
        values = select(rows, preset, name)
        good, bad = values[~failed], np.round(np.sort(values[failed]), 3).tolist()
        print(
            f"  {name}: {values.mean():.4f} ± {values.std(ddof=1):.4f}, "
            f"median {np.median(values):.4f}; good {good.mean():.4f} ± {good.std(ddof=1):.4f} "
            f"({good.min():.3f} to {good.max():.3f}); failed {bad}"
        )
    every = [row for row in rows if row["preset"] == preset and row["mig_all_images"]]
    gaps = [float(row["mig_all_images"]) - float(row["mig"]) for row in every]
    if gaps:
        print(f"  MIG of all images less that of the sample: {min(gaps):.4f} to {max(gaps):.4f}")


def print_fisher_tests(rows: list[Row]) -> None:
    """Print Fisher's exact test of the failures of each preset against KL = 18."""
    tables = {}
    for name in METHODS:
        failed = select(rows, name, "failed_mig")
        tables[name] = [int(failed.sum()), int((failed == 0).sum())]
    for name in list(METHODS)[1:]:
        counts = [tables["shapes2d-control-18"], tables[name]]
        print(f"Fisher, {name}: {counts}, p = {stats.fisher_exact(counts).pvalue:.4f}")


def print_rule(rows: list[Row], separations: list[dict[int, float]]) -> None:
    """Print the hits and false alarms of the label-free rule at several steps."""
    failed = np.array([row["failed_mig"] == "1" for row in rows])
    print("\nS < 0.85 at step: failed runs found, good runs flagged, area under the ROC curve")
    for step in range(10_000, 100_001, 10_000):
        values = np.array([course[step] for course in separations])
        flagged = values < MIN_SEPARATION
        found, alarms = (flagged & failed).sum(), (flagged & ~failed).sum()
        area = roc_area(-values, failed)
        print(f"  {step}: {found} of {failed.sum()}, {alarms} of {(~failed).sum()}, {area:.3f}")
    flagged = np.array([row["failed_label_free"] == "1" for row in rows])
    for name, hits, cases in (
        ("sensitivity", flagged & failed, failed),
        ("specificity", ~flagged & ~failed, ~failed),
    ):
        count, total = int(hits.sum()), int(cases.sum())
        print(f"  {name}: {count} of {total} ({exact_interval(count, total)})")


def print_other_indicators(rows: list[Row], row_logs: list[Log], preset: str) -> None:
    """Print how well total KL, β and reconstruction separate failed seeds from good ones.

    Args:
        rows: Rows of the table.
        row_logs: Log of each row, by step.
        preset: Preset whose runs are looked at.
    """
    chosen = [
        (row, log) for row, log in zip(rows, row_logs, strict=True) if row["preset"] == preset
    ]
    failed = np.array([row["failed_mig"] == "1" for row, _ in chosen])
    if not failed.any():
        return
    for step in (60_000, 100_000):
        areas = {
            name: round(roc_area(np.array([log[step][name] for _, log in chosen]), failed), 2)
            for name in ("kl", "beta", "reconstruction")
        }
        print(f"  {preset}, step {step}, area for larger values: {areas}")
    reconstruction = select(rows, preset, "reconstruction")
    high = reconstruction > np.median(reconstruction) + 3
    print(
        f"  reconstruction 3 nats above the median: {(high & failed).sum()} of {failed.sum()} "
        f"failed, {(high & ~failed).sum()} of {(~failed).sum()} good"
    )


def roc_area(values: np.ndarray, failed: np.ndarray) -> float:
    """Return the probability that a failed seed has a larger value than a good one."""
    rank_sum = stats.mannwhitneyu(values[failed], values[~failed]).statistic
    return float(rank_sum / (failed.sum() * (~failed).sum()))


def print_repeat(rows: list[Row]) -> None:
    """Print which seeds fail in both rows that are equal up to step 520,000."""
    for rule in ("failed_mig", "failed_label_free"):
        one, other = (
            {int(row["seed"]) for row in rows if row["preset"] == preset and row[rule] == "1"}
            for preset in REPEATED
        )
        both, count = len(one & other), len(select(rows, REPEATED[0], "seed"))
        counts = [[both, len(one) - both], [len(other) - both, count - len(one | other)]]
        print(
            f"\n{rule}: KL = 18 {sorted(one)}, KL = 16 {sorted(other)}, "
            f"both {sorted(one & other)}; "
            f"Fisher {counts} p = {stats.fisher_exact(counts).pvalue:.2g}, "
            f"{len(one) * len(other) / count:.1f} expected if independent"
        )


if __name__ == "__main__":
    main()
