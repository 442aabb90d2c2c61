"""Compare one rate-conditioned network with networks that were trained for one rate each.

    python benchmarks/rate_curve.py runs/curve --preset shapes2d-quick --rates 3,24 \\
      --alone 3.5,6,12,22 --steps 24000 --device cpu

For every seed it trains the network for all rates and then one network per rate with the same
steps, batch and learning rate, measures all of them on the same examples, and prints how far the
reconstruction of the one network is from that of the others, and what it cost. Settings of the
network for all rates are changed with `--set`, such as `--set rates.balance=0` or
`--set training.batch=512`. Finished runs are not repeated.
"""

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path

import torch

import controlvae as cv
from controlvae import lab
from controlvae.lab.api.curve_results import CurveResult
from controlvae.lab.config import override, preset
from controlvae.lab.io import write_text
from controlvae.lab.runs.folder import RunFolder


def main() -> None:
    """Train, measure and print."""
    args = parse_arguments()
    results = [compare(args, seed) for seed in args.seeds]
    print(describe(args, results))
    write_text(args.out / "comparison.json", json.dumps(results, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--preset", default="shapes2d-quick")
    parser.add_argument("--rates", type=numbers, default=(3.0, 24.0), help="lowest,highest")
    parser.add_argument("--alone", type=numbers, default=(3.5, 6.0, 12.0, 22.0))
    parser.add_argument("--steps", type=int, default=24_000)
    parser.add_argument("--bins", type=int, default=8)
    parser.add_argument("--seeds", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument(
        "--set", dest="sets", action="append", default=[], help="of the one network"
    )
    parser.add_argument("--examples", type=int, default=4_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", default="auto")
    return parser.parse_args()


def numbers(text: str) -> tuple[float, ...]:
    """Return comma-separated numbers."""
    return tuple(float(part) for part in text.split(","))


def compare(args: argparse.Namespace, seed: int) -> dict[str, object]:
    """Train and measure all networks of a seed."""
    options = {"device": args.device, "threads": args.threads, "progress": False}
    seconds: dict[str, float] = {}
    folder = args.out / f"seed-{seed}"
    for rate in args.alone:
        base = override(preset(args.preset), [f"training.seed={seed}"])
        training = replace(base.training, steps=args.steps)
        experiment = replace(base, control=cv.Auto(rate), training=training)
        path = folder / f"alone-{rate:g}"
        if not RunFolder(path).has_ended():
            lab.train(experiment, run=path, **options)
        seconds[path.name] = training_seconds(RunFolder(path))
    result: CurveResult = lab.curve(
        args.preset,
        rates=args.rates,
        bins=args.bins,
        steps=args.steps,
        run=folder / "curve",
        overrides=[f"training.seed={seed}", *args.sets],
        compare=[folder / f"alone-{rate:g}" for rate in args.alone],
        examples=args.examples,
        **options,
    )
    seconds["curve"] = training_seconds(result.run.folder)
    pairs = []
    for point in result.curve.separate:
        here = result.curve.at(point.kl)
        pairs.append(
            {
                "kl": point.kl,
                "alone": point.reconstruction,
                "one network": here.reconstruction,
                "difference": here.reconstruction / point.reconstruction - 1,
            }
        )
    return {
        "seed": seed,
        "largest error of a rate": result.curve.largest_error,
        "pairs": pairs,
        "seconds": seconds,
    }


def training_seconds(folder: RunFolder) -> float:
    """Return the wall time between the first and the last event of a run."""
    times = [event["time"] for event in folder.events() if "time" in event]
    stamps = [time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) for text in times]
    return max(stamps) - min(stamps) if stamps else float("nan")


def describe(args: argparse.Namespace, results: list[dict[str, object]]) -> str:
    """Return the results as text."""
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    lines = [
        f"{args.preset}, rates {args.rates}, {args.steps:,} steps, {args.bins} set points, "
        f"{' '.join(args.sets) or 'default settings'}; torch {torch.__version__}, {machine}",
        "seed  KL      alone     one network  difference",
    ]
    for result in results:
        for pair in result["pairs"]:  # type: ignore[attr-defined]
            lines.append(
                f"{result['seed']:4}  {pair['kl']:6.2f}  {pair['alone']:8.2f}  "
                f"{pair['one network']:11.2f}  {100 * pair['difference']:+9.1f} %"
            )
        seconds: dict[str, float] = result["seconds"]  # type: ignore[assignment]
        alone = [value for name, value in seconds.items() if name != "curve"]
        lines.append(
            f"      largest error of 25 rates {100 * result['largest error of a rate']:.2f} %; "  # type: ignore[operator]
            f"{seconds['curve']:.0f} s against {sum(alone) / len(alone):.0f} s for one rate"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
