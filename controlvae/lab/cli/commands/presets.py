"""Commands `presets` and `data`: what can be trained, and what it needs."""

from typing import Annotated

import typer

from controlvae.lab.cli import options as cli

_PARTS = ("data", "model", "objective", "control", "optimiser", "training")  # settings of --set


@cli.command("presets", cli.TRAIN)
def _presets(
    name: Annotated[str | None, cli.argument("Show every setting of this preset.")] = None,
) -> None:
    """List the presets with their table or figure of the paper, or the settings of one."""
    from controlvae.lab.cli.format import print_columns
    from controlvae.lab.config import PRESETS, describe_settings, preset

    if name is not None:
        settings = [tuple(one) for one in describe_settings(preset(name)) if _is_setting(one.path)]
        print_columns(("setting", "value", "meaning"), settings)
        return
    rows = [
        (one.name, one.about, f"{one.training.steps:>9,}", one.paper) for one in PRESETS.values()
    ]
    print_columns(("preset", "what", "steps", "paper"), rows)


def _is_setting(path: str) -> bool:
    return "." in path or path in _PARTS


@cli.command("data", cli.TRAIN)
def _data(
    name: Annotated[str | None, cli.argument("Data set. Default: all.")] = None,
    data_root: cli.DataRoot = None,
) -> None:
    """Show the files that data sets need, where they are looked for, and what was found."""
    from controlvae.lab.data.registry import dataset_specs, describe_dataset

    for each in [name] if name else dataset_specs():
        source = describe_dataset(each, data_root)
        typer.echo(f"{source.name}: {source.about}")
        typer.echo(f"  needs      {source.needs}")
        typer.echo(f"  looked in  {', '.join(str(path) for path in source.looked_in)}")
        typer.echo(f"  found      {source.found}")
