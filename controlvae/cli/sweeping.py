"""`sweep`: one preset at several values of a setting, x seeds, and what each costs and gives."""

from itertools import product
from pathlib import Path

import typer

from controlvae.cli import training
from controlvae.cli.many import seed_folders, train_all
from controlvae.errors import UserError
from controlvae.experiments import override, preset
from controlvae.report.sweep import write_sweep


def sweep(name: str, sets: list[str], vary: list[str], run: Path, seeds: int, how: training.How, command: str) -> None:
    """Trains every combination, side by side where they differ in control alone, and draws rate against distortion."""
    base = override(preset(name), sets)
    settings = [_values(text) for text in vary]
    folders = {}
    for chosen in product(*settings):
        label = ", ".join(assignment.rsplit(".", 1)[-1] for assignment in chosen)
        folders[label] = seed_folders(override(base, list(chosen)), run / label.replace(", ", "-"), seeds, command)
    train_all([folder for own in folders.values() for folder in own], how)
    for line in write_sweep(folders, run):
        typer.echo(line)


def _values(text: str) -> list[str]:
    """`control.target=14,16,18` -> its three assignments."""
    path, equals, values = text.partition("=")
    each = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not path or not each:
        raise UserError(f"--vary takes part.field=value,value,..., got {text!r}")
    return [f"{path.strip()}={value}" for value in each]
