"""Command `search`, which looks for the settings that optimise an objective."""

from pathlib import Path
from typing import Annotated

import typer

from controlvae.lab.cli import options as cli


@cli.command("search", cli.CHOOSE)
def _search(
    preset: cli.Preset,
    vary: Annotated[
        list[str],
        cli.option("Setting and its range or values. Repeatable.", metavar="PART.FIELD=LOW:HIGH"),
    ],
    objective: Annotated[str, cli.option("elbo, reconstruction, fid, mig, ...")] = "elbo",
    trials: Annotated[int, cli.option("Number of trials of the whole search.", 1)] = 40,
    workers: Annotated[int, cli.option("Processes that share the trials.", 1)] = 1,
    prune: Annotated[
        str, cli.option("Validation curve to prune by: elbo, reconstruction, none or auto.")
    ] = "auto",
    sets: cli.Sets = None,
    run: Annotated[
        Path | None, cli.option("Folder of the search. Default: runs/PRESET-search.")
    ] = None,
    seed: Annotated[int, cli.option("Seed of the sampler.", 0)] = 0,
    fid: cli.Fid = None,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    data_root: cli.DataRoot = None,
    threads: cli.Threads = "auto",
) -> None:
    """Search for the best settings. The same command resumes, or adds a worker."""
    from controlvae.lab.api.search import RunOptions, SearchOptions, run_search

    options = RunOptions.parse(
        device, time_limit, checkpoint_every, data_root=data_root, threads=threads
    )
    chosen = SearchOptions(objective, None, trials, workers, prune, fid, seed)
    command = cli.recorded_command()
    result = run_search(preset, vary, sets, chosen, options, run=run, command=command)
    typer.echo("\n".join(result.summary))
