"""`target`: what KL the plain VAE ends with, what KLs are within reach, and a set point to begin with."""

from dataclasses import replace
from pathlib import Path
from shlex import quote

import typer

from controlvae.errors import RunError, UserError
from controlvae.lab.cli import training
from controlvae.lab.cli.many import seed_folders, train_all
from controlvae.lab.config import Experiment
from controlvae.lab.runs.folder import RunFolder, last_tenth, mean_between
from controlvae.lab.training.resolve import resolve_experiment
from controlvae.laws import Capacity, Constant, Feedback
from controlvae.tuning.target_search import ProbeResult, advise_from, doubts, probe_weights


def target(
    name: str, sets: list[str], steps: int, run: Path, how: training.RunOptions, command: str
) -> None:
    """Trains the plain VAE and the law's two bounds side by side for a short budget, and reads their KL."""
    base = _logged_often(
        resolve_experiment(name, [*sets, f"training.steps={steps}"], how.data_root)
    )
    if base.controlled_quantity != "kl":
        raise UserError(
            f"{name} holds {base.controlled_quantity}, not the KL; the paper's band is about the KL"
        )
    low, high = _bounds(base)
    if low >= 1:
        raise UserError(
            f"the weight of {name} never goes below {low:g}, so its KL stays below the plain VAE's and the paper's "
            f"band does not apply; to measure the plain VAE all the same: --set 'control=PI(1)'"
        )
    try:
        weights = probe_weights(low, high)
    except ValueError as error:
        raise UserError(str(error)) from None
    folders = {
        weight: seed_folders(
            replace(base, control=Constant(weight)), run / f"beta-{weight:g}", 1, command
        )[0]
        for weight in weights
    }
    train_all(list(folders.values()), how)
    for folder in folders.values():
        if any(event["event"] == "diverged" for event in folder.events()):
            raise RunError(
                f"{folder.path} diverged, and its KL says nothing; try a smaller optimiser.rate"
            )
        if not folder.records():
            raise UserError(f"{folder.path} has no log yet; give it more time")
    readings = {weight: _reading(folder) for weight, folder in folders.items()}
    reached = min(folder.records()[-1]["step"] for folder in folders.values())
    budget, tail = (
        "" if reached >= steps else f" of {steps:,}",
        max(reached // 10, base.training.log_every),
    )
    typer.echo(
        f"after {reached:,} steps{budget}, nats per example, means over the last {tail:,} training batches:"
    )
    for weight, folder in folders.items():
        what = (
            "plain VAE"
            if weight == 1
            else "at the lower bound"
            if weight < 1
            else "at the upper bound"
        )
        reconstruction = last_tenth(folder.records(), "reconstruction")
        typer.echo(
            f"  {what:24s} β {weight:<6g} KL {readings[weight].kl:9.2f}   reconstruction {reconstruction:10.2f}"
        )
    try:
        advice = advise_from(readings, high)
    except ValueError as error:
        raise UserError(str(error)) from None
    longer = (
        "the same command goes on"
        if reached < steps
        else f"train longer, with another --run: --steps {4 * steps}"
    )
    for doubt in doubts(readings, advice):
        typer.echo(f"{doubt}; {longer}")
    typer.echo(f"within reach: {advice.reachable.low:.1f} to {advice.reachable.high:.1f} nats")
    typer.echo(f"the paper's band: {advice.band.low:.1f} to {advice.band.high:.1f} nats")
    typer.echo(f"a set point to begin with: {advice.target:.3g} nats ({advice.words})")
    held = isinstance(base.control, Feedback) and not isinstance(base.control, Capacity)
    setting = (
        f"control.target={advice.target:.3g}" if held else f"'control=PI({advice.target:.3g})'"
    )
    settings = [*(f"--set {quote(text)}" for text in sets), *map(quote, how.describe_data_root)]
    typer.echo(" ".join(["to train there: controlvae train", name, *settings, "--set", setting]))
    if held:
        typer.echo(
            " ".join(
                [
                    "or beside the plain VAE: controlvae sweep",
                    name,
                    *settings,
                    "--vary",
                    setting,
                    "--vae",
                ]
            )
        )


def _bounds(experiment: Experiment) -> tuple[float, float]:
    """The ends of what the law may give; a schedule or a capacity stands for a law between 0 and 1."""
    law = experiment.control
    return law.bounds if isinstance(law, Feedback) and not isinstance(law, Capacity) else (0.0, 1.0)


def _logged_often(experiment: Experiment) -> Experiment:
    """With 20 log lines or more, so that a tenth of the steps is whole lines of them.

    The interval divides the preset's: what is looked at every so many lines still is.
    """
    own, steps = experiment.training.log_every, experiment.training.steps
    every = max(n for n in range(1, max(1, min(own, steps // 20)) + 1) if own % n == 0)
    return replace(experiment, training=replace(experiment.training, log_every=every))


def _reading(folder: RunFolder) -> ProbeResult:
    records = folder.records()
    return ProbeResult(last_tenth(records, "kl"), mean_between(records, "kl", 0.4, 0.5))
