"""`sweep`: one preset at several values of a setting, x seeds, and what each costs and gives."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import typer

from controlvae.errors import UserError, shell_command
from controlvae.lab.cli import training
from controlvae.lab.cli.many import seed_folders, train_all
from controlvae.lab.cli.runs import evaluate_new
from controlvae.lab.config import override
from controlvae.lab.config.data import ImageSettings, Shapes2D
from controlvae.lab.reports.sweep import write_sweep
from controlvae.lab.training.resolve import resolve_experiment
from controlvae.laws import Constant

PLAIN = "plain VAE"


def sweep(
    name: str,
    sets: list[str],
    vary: list[str],
    run: Path,
    seeds: int,
    how: training.RunOptions,
    command: str,
    *,
    vae: bool = False,
    evaluate: bool = False,
    fid: int | None = None,
) -> None:
    """Trains every combination, side by side where they differ in control alone, and draws rate against distortion."""
    base = resolve_experiment(name, sets, how.data_root)
    settings = [assignments(text) for text in vary]
    paths = [own[0].partition("=")[0] for own in settings]
    if len(set(paths)) < len(paths):
        raise UserError(f"--vary names a setting twice: {', '.join(paths)}")
    if vae and any(path.split(".")[0] != "control" for path in paths):
        raise UserError(
            "--vae compares with one plain VAE, so --vary may name settings of control alone"
        )
    # All of them before any folder is made: a wrong value leaves nothing behind.
    chosen = {_label(each): override(base, list(each)) for each in product(*settings)}
    if vae:
        chosen = {PLAIN: replace(base, control=Constant(1.0)), **chosen}
    chosen = {
        label: replace(experiment, name=f"{name} ({label})", about=f"{label}, in a sweep of {name}")
        for label, experiment in chosen.items()
    }
    names = {label: re.sub(r"[^\w=.,()+-]", "_", label) for label in chosen}
    if len(set(names.values())) < len(names):
        raise UserError(
            f"two of these values give one folder name, out of {', '.join(names.values())}; rename one"
        )
    folders = {
        label: seed_folders(own, run / names[label], seeds, command)
        for label, own in chosen.items()
    }
    every = [folder for own in folders.values() for folder in own]
    train_all(every, how)
    if evaluate or fid:
        evaluate_new(every, how.device, how.data_root, fid)
    for line in write_sweep(folders, run, PLAIN if vae else None):
        typer.echo(line)
    photographs = isinstance(base.data, ImageSettings) and not isinstance(base.data, Shapes2D)
    pictures = photographs and how.device.type == "cpu"  # where nobody gets FID unasked
    asked = ["--fid", fid or 1_000] if pictures else []
    typer.echo(
        f"their curves and pictures side by side: {shell_command('report', run, *asked, *how.describe_data_root)}"
    )


def assignments(text: str) -> list[str]:
    """`control.target=14,16.5` -> its two assignments; commas within parentheses or quotes belong to a value."""
    path, equals, values = text.partition("=")
    pieces, depth, quoted = [""], 0, ""
    for character in values:
        quoted = "" if character == quoted else quoted or (character if character in "'\"" else "")
        depth += (character in "([") - (character in ")]") if not quoted else 0
        if character == "," and depth == 0 and not quoted:
            pieces.append("")
        else:
            pieces[-1] += character
    each = [piece.strip() for piece in pieces if piece.strip()]
    if not equals or not path.strip() or not each:
        raise UserError(f"--vary takes part.field=value,value,..., got {text!r}")
    return [f"{path.strip()}={value}" for value in each]


def _label(each: tuple[str, ...]) -> str:
    """`target=14.5, ki=0.001`: the last name of each path, and its value."""
    pairs = (assignment.partition("=") for assignment in each)
    return ", ".join(f"{path.rsplit('.', 1)[-1]}={value}" for path, _, value in pairs)
