"""Commands `target`, `simulate` and `sweep`, which help to choose settings."""

from pathlib import Path
from typing import Annotated, Any

import typer

from controlvae.lab.cli import options as cli
from controlvae.lab.cli.cluster_options import ClusterChoice, show_submission, takes_cluster

_FOR_HELP = "reconstruction, no-collapse, disentangling, rate or elbo. Default: reconstruction; in a terminal you are asked."


@cli.command("target", cli.CHOOSE)
@takes_cluster
def _target(
    preset: cli.Preset,
    sets: cli.Sets = None,
    purpose: Annotated[str | None, cli.option(_FOR_HELP, name="--for", show_default=False)] = None,
    steps: Annotated[int, cli.option("Steps to train before the KL is read.", 10)] = 5_000,
    budget: Annotated[
        int | None, cli.option("Further steps to spend on a search for the best set point.", 10)
    ] = None,
    objective: Annotated[
        str | None,
        cli.option("What the search maximises. Default: elbo.", metavar="elbo|iwae|fid"),
    ] = None,
    run: Annotated[
        Path | None, cli.option("Folder of its runs. Default: runs/PRESET-target.")
    ] = None,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    data_root: cli.DataRoot = None,
    *,
    jobs: ClusterChoice,
) -> None:
    """Recommend a set point from the plain VAE's KL, and say what it costs in ELBO."""
    from controlvae.lab.api.target import (
        PURPOSES,
        RunOptions,
        Submission,
        make_budget,
        make_job_options,
        run_target_search,
        source_name,
    )

    made, device = make_job_options(jobs.cluster, device, jobs.dry_run)
    options = RunOptions.parse(device, time_limit, checkpoint_every, data_root=data_root)
    path, command = run or Path("runs") / f"{source_name(preset)}-target", cli.recorded_command()
    chosen: dict[str, Any] = {"path": path, "steps": steps, "command": command, "jobs": made}
    chosen["budget"] = make_budget(budget, objective)
    chosen["purpose"] = purpose or cli.ask("What is the target for?", PURPOSES)
    result = run_target_search(preset, sets, options, **chosen)
    if isinstance(result, Submission):
        show_submission(result)
        return
    typer.echo("\n".join(result.summary))


@cli.command("simulate", cli.CHOOSE)
def _simulate(
    run: cli.RunArgument,
    laws: Annotated[
        list[str],
        cli.option("Law to try, e.g. 'Auto(18)'. Repeatable.", name="--law", metavar="LAW"),
    ],
    steps: Annotated[
        int | None, cli.option("Steps. Default: as many as the run has.", 1, max=10_000_000)
    ] = None,
    out: Annotated[
        Path | None, cli.option("Image to write. Default: figures/simulation.png of the run.")
    ] = None,
) -> None:
    """Try laws and gains within a second, on a model of the KL's response fitted to a run's log."""
    from controlvae.lab.api.simulate import simulate_run

    result = simulate_run(run, laws, steps=steps, out=out)
    for line in result.warnings:
        typer.echo(f"controlvae: {line}", err=True)
    typer.echo("\n".join([*result.summary, str(result.figure)]))


@cli.command("sweep", cli.CHOOSE)
@takes_cluster
def _sweep(
    preset: cli.Preset,
    vary: Annotated[
        list[str], cli.option("Setting and its values. Repeatable.", metavar="PART.FIELD=V,V,...")
    ],
    sets: cli.Sets = None,
    run: Annotated[
        Path | None, cli.option("Folder of the sweep. Default: runs/PRESET-sweep.")
    ] = None,
    seeds: cli.Seeds = 1,
    vae: Annotated[
        bool, cli.flag("--vae", "Compare with the plain VAE and with the paper's bound.")
    ] = False,
    evaluate: Annotated[
        bool, cli.flag("--evaluate", "Evaluate every run, and show that instead of the log.")
    ] = False,
    fid: cli.Fid = None,
    device: cli.Device = "auto",
    time_limit: cli.TimeLimit = None,
    checkpoint_every: cli.CheckpointEvery = "30s",
    data_root: cli.DataRoot = None,
    *,
    jobs: ClusterChoice,
) -> None:
    """Train all combinations of settings and seeds side by side. The same command resumes."""
    from controlvae.lab.api.sweep import (
        RunOptions,
        Submission,
        make_job_options,
        run_sweep,
        source_name,
    )

    made, device = make_job_options(jobs.cluster, device, jobs.dry_run)
    options = RunOptions.parse(device, time_limit, checkpoint_every, data_root=data_root)
    chosen: dict[str, Any] = {"seeds": seeds, "vae": vae, "evaluate": evaluate, "fid": fid}
    path, command = run or Path("runs") / f"{source_name(preset)}-sweep", cli.recorded_command()
    result = run_sweep(preset, vary, sets, options, path=path, **chosen, command=command, jobs=made)
    if isinstance(result, Submission):
        show_submission(result)
        return
    typer.echo("\n".join(result.summary))
    typer.echo(f"compare their curves and images with: {result.report_command}")
