"""What Tables 1 to 9 of the paper cost on 8 and on 64 H200s, from measured speeds.

    python benchmarks/paper_plan.py --cards 8,64 --seeds 5

Training alone, without the queue, the first compilation of kernels and evaluation. Runs that two
tables share are trained once. The plan is the one that `controlvae reproduce ... --dry-run` makes.
A step of another batch size than the measured one takes as much longer as the batch is larger, and
is not counted as faster where it is smaller. CelebA has the network and batch of CIFAR-10.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from controlvae.lab.cluster.base import Slots
from controlvae.lab.cluster.plan import PlannedRun, format_time, make_plan
from controlvae.lab.cluster.speed import Speed, SpeedLine, find_speed
from controlvae.lab.config import Experiment, preset
from controlvae.lab.runs.folder import RunFolder
from controlvae.paper.figures import RESULTS

TABLES = {
    1: "table-mig",
    2: "table-rmig",
    3: "table-cifar10",
    4: "table-celeba",
    5: "table-dialog",
    6: "ablation-target",
    7: "ablation-step",
    8: "ablation-batch",
    9: "ablation-latent",
}
# Presets whose speed was measured, by the network and the objective of others.
MEASURED = {
    "Elbo ConvVAEConfig": "shapes2d-control-16",
    "TotalCorrelation ConvVAEConfig": "shapes2d-factor",
    "Elbo ImageVAEConfig": "cifar10-control-145",
    "BagOfWords DialogVAEConfig": "dialog-control-35",
}
DEVICE = "NVIDIA H200"


def speed_of(experiment: Experiment) -> Speed:
    """Return the measured speed of the nearest preset, slowed down for a larger batch."""
    kind = f"{type(experiment.objective).__name__} {type(experiment.model).__name__}"
    measured = preset(MEASURED[kind])
    found = find_speed(measured, DEVICE)
    assert found is not None, kind
    scale = max(1.0, experiment.training.batch / measured.training.batch)
    lines = [SpeedLine(one.models, one.steps_per_second / scale) for one in found.lines]
    return replace(found, lines=tuple(lines))


def runs_of(names: list[str], seeds: int) -> list[PlannedRun]:
    """Return the runs of some tables, each once."""
    keys = dict.fromkeys(row.preset for name in names for row in RESULTS[name].rows if row.preset)
    runs = []
    for key in keys:
        base = preset(key)
        for seed in range(1, seeds + 1):
            training = replace(base.training, seed=seed)
            folder = RunFolder(Path("no-such-folder") / key / f"seed-{seed}")
            runs.append(PlannedRun(replace(base, training=training), folder))
    return runs


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", default="8,64", help="numbers of cards, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    cards = [int(word) for word in arguments.cards.split(",")]
    headings = ["tables", "runs", "steps", *(f"{n} H200s" for n in cards)]
    headings += [f"GPU-hours on {n}" for n in cards]
    print("| " + " | ".join(headings) + " |")
    print("| --- |" + " ---: |" * (len(headings) - 1))
    everything = list(TABLES.values())
    rows = {"1 and 2": everything[:2]}
    rows |= {str(number): [name] for number, name in TABLES.items() if number > 2}
    rows["1 to 9, shared runs once"] = everything
    for title, names in rows.items():
        runs = runs_of(names, arguments.seeds)
        plans = [
            make_plan(runs, slots=Slots(n, ""), gpus=1, per_job=None, measure=speed_of)
            for n in cards
        ]
        steps = sum(run.steps_left for run in runs)
        cells = [title, str(len(runs)), f"{steps / 1e6:.1f} million"]
        cells += [format_time(plan.seconds or 0.0) for plan in plans]
        cells += [f"{(plan.card_seconds or 0.0) / 3600:.1f}" for plan in plans]
        print("| " + " | ".join(cells) + " |")
    used = dict.fromkeys(find_speed(preset(name), DEVICE) for name in MEASURED.values())
    print()
    print("speeds: " + "; ".join(f"{one.source}" for one in used if one is not None))


if __name__ == "__main__":
    main()
