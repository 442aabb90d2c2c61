"""Command `reproduce`: tables and figures of the paper."""

from pathlib import Path
from typing import Annotated, Any

import typer

from controlvae.lab.cli import options as cli
from controlvae.lab.cli.cluster_options import ClusterChoice, show_submission, takes_cluster

_RUNS = Path("runs/paper")
_METHOD_HELP = "Add your method: its runs, or scores of its codes. Repeatable."


@cli.command("reproduce", cli.PAPER)
@takes_cluster
def _reproduce(
    name: Annotated[
        str | None, cli.argument("Table or figure of the paper. Default: list them.")
    ] = None,
    runs: Annotated[Path, cli.option("Folder of the runs, tables and figures.")] = _RUNS,
    seeds: Annotated[
        int | None, cli.option("Seeds of a method to train (default 5) and use (default all).", 1)
    ] = None,
    only: Annotated[
        list[str] | None, cli.option("Train only this preset. Repeatable.", metavar="PRESET")
    ] = None,
    methods: Annotated[
        list[str] | None, cli.option(_METHOD_HELP, name="--method", metavar="NAME=FOLDER")
    ] = None,
    beside: Annotated[list[str] | None, typer.Option("--beside", hidden=True)] = None,
    sets: cli.Sets = None,
    train: Annotated[
        bool, cli.flag("--train/--no-train", "Train what is missing, or only use what exists.")
    ] = True,
    fid: cli.Fid = None,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "2m",
    data_root: cli.DataRoot = None,
    *,
    jobs: ClusterChoice,
) -> None:
    """Train and evaluate every method and seed of a table or figure, next to the printed numbers.

    The same command resumes.
    """
    from controlvae.lab.cli.format import print_markdown
    from controlvae.paper.reproduce import Submission, list_results, reproduce

    if name is None:
        for result, title in list_results().items():
            typer.echo(f"{result:21s} {title}")
        return
    if beside:
        typer.echo("controlvae: note: --beside is now called --method", err=True)
    execution: dict[str, Any] = {"time_limit": time_limit, "checkpoint_every": checkpoint_every}
    execution |= {"device": device, "data_root": data_root, "fid": fid, **jobs._asdict()}
    made = reproduce(
        name,
        runs=runs,
        seeds=seeds,
        only=only or [],
        methods=[*(methods or []), *(beside or [])],
        overrides=sets,
        train=train,
        **execution,
    )
    if isinstance(made, Submission):
        show_submission(made)
        return
    print_markdown(made.text) if made.is_markdown else typer.echo(made.text)
    first, *others = made.files
    typer.echo(f"written to {first}" + "".join(f" and {path.suffix}" for path in others))
