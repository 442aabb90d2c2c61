"""Write the table of packed runs of `failure_causes.py`, draw their figure and print the tests.

    python benchmarks/failure_causes_report.py results/disentangling --packed packed/runs.json.gz
    python benchmarks/failure_causes_report.py results/disentangling

The first command adds runs to `failure-causes.csv` and `failure-causes-logs.json.gz`. Both draw
`failure-causes.png` and `.svg` from these files and `fresh-seeds.csv`, and print the numbers of
`failure-causes.md`. Needs scipy (`pip install scipy`), which controlvae does not depend on.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from failure_causes import FLAGGED, SEEDS, WEIGHT_SEEDS
from failure_causes_figure import draw_figure
from fresh_seeds_rules import MIN_SEPARATION, RULE_STEP, separation
from scipy import stats

CANDIDATES = {  # in the order of the table
    "latent-weights": "latent weights",
    "first-beta": "first β of 80",
    "initialisation": "N(0, 0.02) weights",
    "adam": "Adam's β₂ = 0.99",
    "tf32": "tf32",
    "exchanged": "exchanged weights",
}
BASELINE, REPEAT = "shapes2d-control-18", "shapes2d-control-16"  # equal up to step 520,000
LOG_INTERVAL = 2_000  # steps between the log lines that are kept
Row = dict[str, str]
Values = dict[int, float]  # S at the step of the rule, by seed


class Comparison(NamedTuple):
    """A test of one candidate."""

    name: str
    counts: str
    p_value: float


def main() -> None:
    """Write, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packed", type=Path, help="runs.json.gz of `fresh_seeds.py pack`")
    args = parser.parse_args()
    table, logs = args.folder / "failure-causes.csv", args.folder / "failure-causes-logs.json.gz"
    if args.packed:
        write_files(json.loads(gzip.decompress(args.packed.read_bytes())), table, logs)
    known = read_separations(args.folder / "fresh-seeds.csv", "preset")
    found = read_separations(table, "candidate")
    shown = {
        "KL = 18": known[BASELINE],
        "its repeat": known[REPEAT],
        **{label: found[name] for name, label in CANDIDATES.items() if name != "exchanged"},
        "its weights only": by_weight_seed(found["exchanged"]),
        "its batches, noise only": found["exchanged"],
    }
    courses = {
        "KL = 18": read_courses(args.folder / "fresh-seeds-logs.json.gz", BASELINE),
        **{label: read_courses(logs, name) for name, label in CANDIDATES.items()},
    }
    draw_figure(shown, courses, FLAGGED, args.folder / "failure-causes")
    for label, values in shown.items():
        print_counts(label, values)
    print_comparisons(list(compare(found, known[BASELINE], known[REPEAT])))


def write_files(packed: list[dict[str, Any]], table: Path, logs: Path) -> None:
    """Write a row per run, and its log at every `LOG_INTERVAL` steps.

    Other runs that the files hold already are kept.

    Args:
        packed: Content of `runs.json.gz`.
        table: CSV file to write.
        logs: Compressed JSON file to write.
    """
    rows = {(row["candidate"], row["seed"]): row for row in map(make_row, packed)}
    if table.exists():
        with table.open() as file:
            kept = {(row["candidate"], int(row["seed"])): row for row in csv.DictReader(file)}
        rows = kept | rows
    with table.open("w", newline="") as file:
        ordered = sorted(rows, key=in_table_order)
        writer = csv.DictWriter(file, rows[ordered[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in ordered)
    thinned = [
        {
            "preset": run["preset"],
            "seed": run["seed"],
            "log": [line for line in run["log"] if line["step"] % LOG_INTERVAL == 0],
        }
        for run in packed
    ]
    courses = json.loads(gzip.decompress(logs.read_bytes())) if logs.exists() else []
    by_run = {(run["preset"], run["seed"]): run for run in (*courses, *thinned)}
    shown = [by_run[key] for key in sorted(by_run, key=in_table_order)]
    content = json.dumps(shown, separators=(",", ":")).encode()
    logs.write_bytes(gzip.compress(content, mtime=0))


def in_table_order(run: tuple[str, int]) -> tuple[int, int]:
    """Return the place of a candidate's seed in the table, as a sort key."""
    return list(CANDIDATES).index(run[0]), run[1]


def make_row(run: dict[str, Any]) -> dict[str, Any]:
    """Return the table's row of a packed run."""
    line = next(line for line in run["log"] if line["step"] == RULE_STEP)
    seed, nats = run["seed"], line["kl_per_latent"]
    return {
        "candidate": run["preset"],
        "seed": seed,
        "seed_of_weights": WEIGHT_SEEDS[seed] if run["preset"] == "exchanged" else seed,
        "step": RULE_STEP,
        "separation_60000": round(separation(nats), 4),
        "failed_label_free": int(separation(nats) < MIN_SEPARATION),
        "flagged_in_fresh_seeds": int(seed in FLAGGED),
        **{name: line[name] for name in ("kl", "beta", "reconstruction")},
        "kl_per_latent": " ".join(f"{value:.3f}" for value in nats),
    }


def read_separations(table: Path, column: str) -> dict[str, Values]:
    """Return S of each seed, by preset or candidate, from a table."""
    values: dict[str, Values] = {}
    with table.open() as file:
        for row in csv.DictReader(file):
            values.setdefault(row[column], {})[int(row["seed"])] = float(row["separation_60000"])
    return values


def read_courses(logs: Path, name: str) -> dict[int, Values]:
    """Return S by step, of each seed of a preset or candidate, up to the step of the rule."""
    return {
        run["seed"]: {
            line["step"]: separation(line["kl_per_latent"])
            for line in run["log"]
            if line["step"] <= RULE_STEP
        }
        for run in json.loads(gzip.decompress(logs.read_bytes()))
        if run["preset"] == name
    }


def by_weight_seed(values: Values) -> Values:
    """Return S of runs with exchanged weights by the seed of their initial weights."""
    return {WEIGHT_SEEDS[seed]: value for seed, value in values.items()}


def flagged_seeds(values: Values) -> set[int]:
    """Return the seeds that the label-free rule flags."""
    return {seed for seed, value in values.items() if value < MIN_SEPARATION}


def print_counts(label: str, values: Values) -> None:
    """Print flagged runs of all seeds, of the ten flagged before and of the others."""
    flagged = flagged_seeds(values)
    print(f"{label}: flagged {sorted(flagged)}")
    groups = {"all": set(values), "the ten": set(FLAGGED), "others": set(values) - set(FLAGGED)}
    shares = {}
    for name, seeds in groups.items():
        count, total = len(flagged & seeds), len(seeds)
        shares[name] = count / total if total else float("nan")
        if total:
            low, high = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
            print(f"  {name}: {count} of {total} ({100 * low:.0f} to {100 * high:.0f} %)")
    expected = len(FLAGGED) * shares["the ten"] + (50 - len(FLAGGED)) * shares["others"]
    print(f"  of 50, weighted: {expected:.1f}")


def compare(found: dict[str, Values], baseline: Values, repeat: Values) -> Iterator[Comparison]:
    """Yield the tests that were fixed before the runs.

    Rows with all 50 seeds are compared with the baseline. Rows with seeds selected by the
    baseline's flags are compared with the repeat, whose flags are new.

    Args:
        found: S of each candidate by seed.
        baseline: S of KL = 18.
        repeat: S of the repeat with other rounding.
    """
    for name, values in found.items():
        if name != "exchanged":
            full = len(values) == len(SEEDS)
            yield mcnemar(name, values, baseline if full else repeat)
    own = found["exchanged"]
    for part, values in (("weights", by_weight_seed(own)), ("batches and noise", own)):
        flagged = flagged_seeds(values)
        few, rest = set(FLAGGED), set(values) - set(FLAGGED)
        counts = [[len(flagged & seeds), len(seeds - flagged)] for seeds in (few, rest)]
        p_value = float(stats.fisher_exact(counts).pvalue)
        yield Comparison(f"exchanged: {part}", f"Fisher {counts}", p_value)


def mcnemar(name: str, values: Values, reference: Values) -> Comparison:
    """Return the exact McNemar test of a candidate against known runs of the same seeds.

    Args:
        name: Candidate.
        values: S of the candidate by seed.
        reference: S of the known runs by seed.
    """
    now, before = flagged_seeds(values), flagged_seeds(reference) & set(values)
    gone, new = len(before - now), len(now - before)
    p_value = float(stats.binomtest(gone, gone + new).pvalue) if gone + new else 1.0
    counts = f"{len(before)} before, {len(now)} now; {gone} no more, {new} new"
    return Comparison(name, counts, p_value)


def print_comparisons(comparisons: list[Comparison]) -> None:
    """Print all tests with the p-values of Holm's correction."""
    largest = 0.0
    for rank, test in enumerate(sorted(comparisons, key=lambda test: test.p_value)):
        largest = max(largest, min(1.0, (len(comparisons) - rank) * test.p_value))
        print(f"{test.name}: {test.counts}; p = {test.p_value:.4f}, Holm {largest:.4f}")


if __name__ == "__main__":
    main()
