"""Command `curve`: one network for all rates, and its rate-distortion curve."""

from pathlib import Path
from typing import Annotated

import typer

from controlvae.errors import UserError
from controlvae.lab.cli import options as cli


@cli.command("curve", cli.CHOOSE)
def _curve(
    preset: cli.Preset,
    rates: Annotated[str, cli.option("Lowest and highest rate in nats.", metavar="LOW,HIGH")],
    points: Annotated[int, cli.option("Number of points of the curve.", 2, max=1_000)] = 25,
    bins: Annotated[int, cli.option("Number of set points in a batch.", 2, max=256)] = 8,
    sets: cli.Sets = None,
    find: Annotated[
        str | None, cli.option("Close in on the best rate.", metavar="elbo|iwae|fid")
    ] = None,
    separate: Annotated[
        bool,
        cli.option("Train a network for every point, continued from its neighbour."),
    ] = False,
    run: Annotated[
        Path | None, cli.option("Run folder. Default: runs/PRESET-curve, or -target with --find.")
    ] = None,
    compare: Annotated[
        list[Path] | None, cli.option("Runs of single set points to compare with. Repeatable.")
    ] = None,
    examples: Annotated[int | None, cli.option("Number of examples to measure.", 2)] = None,
    fid: cli.Fid = 0,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    data_root: cli.DataRoot = None,
    threads: cli.Threads = "auto",
) -> None:
    """Train one network for all rates, or one each, and draw distortion against rate.

    The same command resumes.
    """
    from controlvae.lab.api.curve import RunOptions, curve_of_preset, parse_rates
    from controlvae.lab.api.curve_results import describe_curve

    limits = (device, time_limit, checkpoint_every, False, data_root)
    options = RunOptions.parse(*limits, threads=threads)
    within = parse_rates(rates.split(","), bins)
    if find is not None and separate:
        raise UserError("--find trains one network; leave out --separate")
    if find is not None:
        from controlvae.lab.api.find_target import find_for_command

        for line in find_for_command(preset, within, options, find, run, sets, examples):
            typer.echo(line)
        return
    result = curve_of_preset(
        preset,
        within,
        options,
        points=points,
        run=run,
        overrides=sets,
        compare=compare or (),
        examples=examples,
        separate=separate,
        fid=fid or 0,
        command=cli.recorded_command(),
    )
    typer.echo("\n".join([*describe_curve(result.curve), *map(str, result.files)]))
