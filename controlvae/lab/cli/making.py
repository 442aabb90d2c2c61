"""The commands that make runs: train them, choose for them, reproduce the paper with them."""

from pathlib import Path
from typing import Annotated

import typer

from controlvae.lab.cli.options import (
    CheckpointEvery,
    DataRoot,
    Device,
    FidPictures,
    RunArgument,
    RunOrSeeds,
    Sets,
    TensorBoard,
    TimeLimit,
    app,
    shown_command,
)

_TRAIN, _CHOOSE, _PAPER = (
    "Train",
    "Choose a target, a law, a setting",
    "The paper",
)  # as --help groups them


_PARTS = ("data", "model", "objective", "control", "optimiser", "training")  # what --set may change


@app.command(rich_help_panel=_TRAIN)
def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show every setting of this one, as --set takes it.")
    ] = None,
) -> None:
    """What can be run, and the table or figure of the paper it belongs to; of one preset, its settings."""
    from rich.table import Table

    from controlvae.lab.cli.progress import wide_console
    from controlvae.lab.config import PRESETS, iter_settings
    from controlvae.lab.config import preset as named

    if name is not None:
        settings = [
            (path, value)
            for path, value in iter_settings(named(name))
            if "." in path or path in _PARTS
        ]
        width = max(len(path) for path, _ in settings)
        typer.echo("\n".join(f"{path:{width}}  {value}" for path, value in settings))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("preset", "what", "steps", "paper"):
        table.add_column(
            head, justify="right" if head == "steps" else "left", no_wrap=head == "preset"
        )
    for experiment in PRESETS.values():
        table.add_row(
            experiment.name, experiment.about, f"{experiment.training.steps:,}", experiment.paper
        )
    wide_console(160).print(table)


@app.command(rich_help_panel=_TRAIN)
def train(
    preset: Annotated[
        str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)
    ],
    sets: Sets = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="The run folder; by default runs/PRESET.")
    ] = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", min=1, help="Train so many seeds, each in a folder of its own."),
    ] = 1,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="RUN",
            help="Open loop: play back the weight a run recorded; of several seeds, their mean.",
        ),
    ] = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    tensorboard: TensorBoard = False,
    data_root: DataRoot = None,
) -> None:
    """Train a preset, with a live view of KL against its target."""
    from controlvae.lab.cli import training

    how = training.options(device, time_limit, checkpoint_every, tensorboard, data_root)
    training.start(
        training.plan(preset, sets or [], run, seeds, replay, data_root), how, shown_command()
    )


@app.command(rich_help_panel=_TRAIN)
def resume(
    run: RunOrSeeds,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    tensorboard: TensorBoard = False,
    data_root: DataRoot = None,
) -> None:
    """Go on from the last good checkpoint as if never stopped.

    Runs in one folder that share their step and all settings but seed and control train side by side; else in turn.
    """
    from controlvae.lab.cli import many, training

    many.resume(run, training.options(device, time_limit, checkpoint_every, tensorboard, data_root))


@app.command(rich_help_panel=_TRAIN)
def branch(
    run: RunOrSeeds,
    to: Annotated[
        Path,
        typer.Argument(
            help="The folder of the new run, or of one for each seed.", show_default=False
        ),
    ],
    sets: Sets = None,
) -> None:
    """A new run that stands where another does, under settings of its own: one beginning, several ends.

    It has the other's weights, optimiser, controller and log. `resume` trains it.
    """
    from controlvae.lab.cli import training
    from controlvae.lab.runs.folder import find_runs

    training.branch_off(find_runs(run), run, to, sets or [], shown_command())


@app.command(
    rich_help_panel=_TRAIN, context_settings={"ignore_unknown_options": True}
)  # -40 is a set point of Geco's
def steer(
    run: RunOrSeeds,
    target: Annotated[
        float, typer.Argument(help="The new set point, in nats per example.", show_default=False)
    ],
) -> None:
    """Move the set point of a run in training, without a jump in β; a run that is stopped takes it up when resumed."""
    from controlvae.lab.runs.folder import find_runs
    from controlvae.lab.runs.logger import in_training
    from controlvae.lab.runs.requests import ask_target

    folders = find_runs(run)
    for folder in [folder for folder in folders if not folder.ended()] or folders[
        :1
    ]:  # one that has ended says so
        ask_target(folder, target)
        later = "" if in_training(folder) else ", when it is resumed"
        typer.echo(f"asked of {folder.path}: {target:g} nats{later}")


@app.command(rich_help_panel=_TRAIN)
def data(
    name: Annotated[
        str | None, typer.Argument(help="A data set; all of them by default.", show_default=False)
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """What a data set needs, where it was looked for, what was found."""
    from controlvae.lab.data.registry import DATASETS, describe_dataset

    for each in [name] if name else DATASETS:
        source = describe_dataset(each, data_root)
        typer.echo(f"{source.name}: {source.about}")
        typer.echo(f"  needs      {source.needs}")
        typer.echo(f"  looked in  {', '.join(str(path) for path in source.looked_in)}")
        typer.echo(f"  found      {source.found}")


@app.command(rich_help_panel=_TRAIN)
def bench(
    preset: Annotated[
        str, typer.Argument(help="A name from `controlvae presets`.")
    ] = "shapes2d-control-16",
    sets: Sets = None,
    device: Device = "auto",
    models: Annotated[
        str, typer.Option("--models", help="Numbers of models side by side.")
    ] = "1,5,25",
    batches: Annotated[
        str, typer.Option("--batches", help="Batch sizes to try with one model.")
    ] = "",
    sizes: Annotated[
        str, typer.Option("--sizes", help="Sides of pictures to try with one model.")
    ] = "",
    precisions: Annotated[
        str, typer.Option("--precisions", help="Of fp32, tf32, bf16; a CPU has fp32.")
    ] = "bf16,tf32",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for each line.")] = 5.0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the table as JSON too.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Steps per second here: the loop most people write, pythae's trainer, and ours for one and for many models.

    Where examples are sentences or dialogs, they are counted in tokens, and pythae has no model of them.
    """
    from controlvae.lab.cli import bench_table as benching
    from controlvae.lab.cli.device import pick_device
    from controlvae.lab.config import override
    from controlvae.lab.config import preset as named

    chosen = pick_device(device)
    lists = benching.Lists.parse(
        models, batches, precisions if chosen.type == "cuda" else "fp32", sizes
    )
    benching.show(override(named(preset), sets or []), chosen, lists, seconds, out, data_root)


@app.command(rich_help_panel=_CHOOSE)
def target(
    preset: Annotated[
        str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)
    ],
    sets: Sets = None,
    steps: Annotated[
        int, typer.Option("--steps", min=10, help="How long to train before reading the KL.")
    ] = 5_000,
    run: Annotated[
        Path | None, typer.Option("--run", help="Where its runs go; by default runs/PRESET-target.")
    ] = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    data_root: DataRoot = None,
) -> None:
    """What set point to choose: the plain VAE's KL, the range within reach, the paper's band, a recommendation."""
    from controlvae.lab.cli import targeting, training

    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    place = run or Path("runs") / f"{preset}-target"
    targeting.target(preset, sets or [], steps, place, how, shown_command())


@app.command(rich_help_panel=_CHOOSE)
def simulate(
    run: RunArgument,
    laws: Annotated[
        list[str],
        typer.Option("--law", metavar="LAW", help="A law to try, e.g. 'Auto(18)'. Repeatable."),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, max=10_000_000, help="How long; by default as long as the run."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The picture to write; by default figures/simulation.png of the run."
        ),
    ] = None,
) -> None:
    """Try laws and gains in a second: a simple model of how the KL answers β, fitted to a run's log."""
    from controlvae.lab.cli import simulating

    simulating.simulate(run, laws, steps, out)


@app.command(rich_help_panel=_CHOOSE)
def sweep(
    preset: Annotated[
        str, typer.Argument(help="A name from `controlvae presets`.", show_default=False)
    ],
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="PART.FIELD=V,V,...",
            help="A setting and its values. Repeatable: all combined.",
        ),
    ],
    sets: Sets = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="The sweep's folder; by default runs/PRESET-sweep.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each.")] = 1,
    vae: Annotated[
        bool,
        typer.Option(
            "--vae",
            help="The plain VAE beside them: what each gains over it, and the paper's bound.",
        ),
    ] = False,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate", help="Measure every run, and show those numbers instead of the log's."
        ),
    ] = False,
    fid: FidPictures = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "30s",
    data_root: DataRoot = None,
) -> None:
    """Several values of a setting x seeds, trained side by side; rate against distortion. Go on by the same command."""
    from controlvae.lab.cli import sweeping, training

    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    place = run or Path("runs") / f"{preset}-sweep"
    sweeping.sweep(
        preset,
        sets or [],
        vary,
        place,
        seeds,
        how,
        shown_command(),
        vae=vae,
        evaluate=evaluate,
        fid=fid,
    )


@app.command(rich_help_panel=_PAPER)
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper; lists them by default.")
    ] = None,
    runs: Annotated[
        Path, typer.Option("--runs", help="Where runs, tables and figures are kept.")
    ] = Path("runs/paper"),
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            help="Seeds of each method: so many are trained (5 by default), the first so many taken (or all).",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PRESET", help="Train these alone. Repeatable."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="NAME=FOLDER",
            help="Your method: its runs, or scores of its codes. Repeatable.",
        ),
    ] = None,
    sets: Sets = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Or only tabulate or draw what is there.")
    ] = True,
    fid: FidPictures = None,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    checkpoint_every: CheckpointEvery = "2m",
    data_root: DataRoot = None,
) -> None:
    """A table or figure of the paper: methods x seeds trained, evaluated, and set beside the printed numbers."""
    from controlvae.lab.cli import reproducing, training

    if name is None:
        reproducing.show_results()
        return
    how = training.options(device, time_limit, checkpoint_every, False, data_root)
    reproducing.reproduce(name, runs, seeds, only or [], beside or [], sets or [], train, how, fid)
