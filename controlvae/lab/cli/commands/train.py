"""Commands `new`, `train`, `resume`, `branch` and `steer`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from controlvae.lab.cli import options as cli
from controlvae.lab.cli.cluster_options import ClusterChoice, show_submission, takes_cluster
from controlvae.lab.cli.repair_options import (
    RepairFlag,
    Unattended,
    check_choice,
    supervises,
    with_repair,
)


@cli.command("new", cli.TRAIN)
def _new(name: Annotated[str, cli.argument("Name of the new file, such as my_vae.")]) -> None:
    """Write NAME.py, a small VAE with data to start from, and print the next commands."""
    from controlvae.lab.api.new import new, next_commands

    path = new(name)
    typer.echo("\n".join([f"wrote {path}; change it, and try it with:", *next_commands(path)]))


@cli.command("train", cli.TRAIN)
@takes_cluster
def _train(
    preset: cli.Preset,
    sets: cli.Sets = None,
    run: Annotated[Path | None, cli.option("Run folder. Default: runs/PRESET.")] = None,
    seeds: cli.Seeds = 1,
    replay: Annotated[Path | None, cli.option(cli.REPLAY_HELP, metavar="RUN")] = None,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    tensorboard: cli.TensorBoard = False,
    logger: cli.Loggers = None,
    data_root: cli.DataRoot = None,
    threads: cli.Threads = "auto",
    devices: cli.Devices = None,
    repair: RepairFlag = None,
    unattended: Unattended = False,
    *,
    jobs: ClusterChoice,
) -> None:
    """Train a preset, with a live view of the KL and its target."""
    check_choice(repair, unattended, devices, jobs.cluster)
    if supervises(unattended, code=preset.endswith(".py") or ":" in preset):
        return
    if cli.launch_ranks(devices):
        return
    from controlvae.lab.api.train import (
        RunOptions,
        Submission,
        make_job_options,
        start_training,
    )

    made, device = make_job_options(jobs.cluster, device, jobs.dry_run)
    limits = (device, time_limit, checkpoint_every, tensorboard, data_root)
    options = RunOptions.parse(*limits, logger=logger, threads=threads)
    options = with_repair(options, repair, unattended)
    chosen: dict[str, Any] = {"run": run, "seeds": seeds, "replay": replay, "jobs": made}
    command = cli.recorded_command()
    result = start_training(preset, sets, **chosen, options=options, command=command)
    if isinstance(result, Submission):
        show_submission(result)


@cli.command("resume", cli.TRAIN)
def _resume(
    run: cli.RunsArgument,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    tensorboard: cli.TensorBoard = False,
    logger: cli.Loggers = None,
    data_root: cli.DataRoot = None,
    threads: cli.Threads = "auto",
    devices: cli.Devices = None,
    repair: RepairFlag = None,
    unattended: Unattended = False,
) -> None:
    """Resume from the last intact checkpoint. The result equals that of an uninterrupted run.

    Runs in a folder train side by side if they share their step and all settings but seed and law.
    """
    check_choice(repair, unattended, devices, None)
    if supervises(unattended):
        return
    if cli.launch_ranks(devices):
        return
    from controlvae.lab.api.train import RunOptions, resume_folders

    limits = (device, time_limit, checkpoint_every, tensorboard, data_root)
    options = RunOptions.parse(*limits, logger=logger, threads=threads)
    resume_folders(run, with_repair(options, repair, unattended))


@cli.command("branch", cli.TRAIN)
def _branch(
    run: cli.RunsArgument,
    to: Annotated[Path, cli.argument("Folder of the new run, or of one per seed.")],
    sets: cli.Sets = None,
) -> None:
    """Create a run that continues from another run's checkpoint with other settings.

    Weights, optimiser, controller and log are those of the other run. `resume` trains it.
    """
    from controlvae.lab.api.train import branch_folders

    typer.echo(branch_folders(run, to, sets or [], cli.recorded_command()))


# Unknown options are ignored, because -40 is a valid set point of Geco.
@cli.app.command(
    "steer", rich_help_panel=cli.TRAIN, context_settings={"ignore_unknown_options": True}
)
def _steer(
    run: cli.RunsArgument,
    target: Annotated[float, cli.argument("New set point, in nats per example.")],
) -> None:
    """Move the set point of a run without a jump in β. A stopped run applies it when resumed."""
    from controlvae.lab.api.train import set_target
    from controlvae.lab.runs.logger import in_training

    for folder in set_target(run, target):
        later = "" if in_training(folder) else ", applied when it is resumed"
        typer.echo(f"requested for {folder.path}: {target:g} nats{later}")
