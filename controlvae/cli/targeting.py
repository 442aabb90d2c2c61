"""`target`: what KL the plain VAE ends with, what KLs are within reach, and a set point to begin with."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer

from controlvae.cli import training
from controlvae.cli.many import seed_folders, train_all
from controlvae.control import Constant, Feedback, advise
from controlvae.errors import UserError
from controlvae.experiments import Experiment, RunFolder, override, preset


def target(name: str, sets: list[str], steps: int, run: Path, how: training.How, command: str) -> None:
    """Trains the plain VAE and the law's two bounds side by side for a short budget, and reads their KL."""
    base = override(preset(name), [*sets, f"training.steps={steps}"])
    if base.objective.holds != "kl":
        raise UserError(f"{name} holds {base.objective.holds}, not the KL; the paper's band is about the KL")
    weights = {"plain VAE": 1.0, **_bounds(base)}
    folders = {
        what: seed_folders(replace(base, control=Constant(weight)), run / f"beta-{weight:g}", 1, command)[0]
        for what, weight in weights.items()
    }
    train_all(list(folders.values()), how)
    measured = {what: _last(folder) for what, folder in folders.items()}
    typer.echo(f"after {steps:,} of {preset(name).training.steps:,} steps, means over the last tenth:")
    for what, (kl, reconstruction) in measured.items():
        typer.echo(f"  {what:24s} β {weights[what]:<6g} KL {kl:9.2f}   reconstruction {reconstruction:10.2f}   nats")
    kls = [kl for kl, _ in measured.values()]
    advice = advise(measured["plain VAE"][0], min(kls), max(kls) if len(kls) > 1 else math.inf)
    typer.echo(f"the paper's band: {advice.band.low:.1f} to {advice.band.high:.1f} nats")
    typer.echo(f"a set point to begin with: {advice.target:.3g} nats ({advice.words})")
    held = isinstance(base.control, Feedback)
    setting = f"control.target={advice.target:.3g}" if held else f"'control=PI({advice.target:.3g})'"
    typer.echo(f"controlvae train {name} --set {setting}")


def _bounds(experiment: Experiment) -> dict[str, float]:
    """The ends of what the law may give; a weight without an upper bound has no lowest KL to measure."""
    law = experiment.control
    low, high = (law.beta_min, law.beta_max) if isinstance(law, Feedback) else (0.0, 1.0)
    ends = {"at the lower bound": low, "at the upper bound": high}
    return {what: weight for what, weight in ends.items() if math.isfinite(weight) and weight != 1.0}


def _last(folder: RunFolder) -> tuple[float, float]:
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log yet; give it more time")
    tail = records[-max(1, len(records) // 10) :]
    return tuple(float(np.mean([record[name] for record in tail])) for name in ("kl", "reconstruction"))  # type: ignore[return-value]
