"""Sweeps: one preset at several values of a setting and several seeds, side by side."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.evaluate import evaluate_pending
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.submit import (
    JobOptions,
    Submission,
    make_job_options,
    plan_runs,
    train_runs_anywhere,
)
from controlvae.lab.config import Experiment, override
from controlvae.lab.config.data import ImageSettings, Shapes2D, Shapes3D
from controlvae.lab.config.overrides import split_values
from controlvae.lab.reports.sweep import write_sweep
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.resolve import Overrides, as_assignments, resolve_experiment
from controlvae.lab.training.run_setup import Plan, plan_seeds
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import create_folders
from controlvae.laws import Constant

PLAIN_VAE = "plain VAE"


class SweepResult(NamedTuple):
    """Runs and summary of a sweep."""

    path: Path
    runs: dict[str, list[RunFolder]]  # by label, such as `target=14`
    summary: list[str]  # human-readable lines
    report_command: str  # shows the curves and images of all runs


def sweep(
    preset: str,
    vary: Mapping[str, Sequence[Any]] | Sequence[str],
    *,
    overrides: Overrides = None,
    run: str | Path | None = None,
    seeds: int = 1,
    vae: bool = False,
    evaluate: bool = False,
    fid: int | None = None,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    cluster: Cluster | None = None,
    dry_run: bool = False,
) -> SweepResult | Submission:
    """Train every combination of some values, and draw rate against distortion.

    Runs that differ in seed and law alone train side by side. Calling the function again resumes
    the sweep.

    Args:
        preset: Name of a preset, or the place of a definition such as `my_vae.py`.
        vary: Values by setting, such as `{"control.target": [14, 16]}`, or texts such as
            `control.target=14,16`. All combinations are trained.
        overrides: Settings to change in every run.
        run: Folder of the sweep. The default is `runs/PRESET-sweep`.
        seeds: Number of seeds per combination.
        vae: Train the plain VAE too, and compare with it.
        evaluate: Evaluate every run, and show these numbers instead of the log's.
        fid: Number of images for FID and KID.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        cluster: `lab.Slurm(...)` or `lab.Local(...)` trains in jobs. The default is this process.
        dry_run: Show the plan of the jobs, and do nothing.

    Returns:
        The runs by label, and a summary. A dry run, or jobs that are not waited for, return what
        was planned or submitted.
    """
    jobs, device = make_job_options(cluster, device, dry_run)
    options = RunOptions.parse(device, time_limit, checkpoint_every, False, data_root, progress)
    return run_sweep(
        preset,
        vary,
        overrides,
        options,
        path=Path(run) if run is not None else Path("runs") / f"{source_name(preset)}-sweep",
        seeds=seeds,
        vae=vae,
        evaluate=evaluate,
        fid=fid,
        jobs=jobs,
    )


def run_sweep(
    preset: str,
    vary: Mapping[str, Sequence[Any]] | Sequence[str],
    overrides: Overrides,
    options: RunOptions,
    *,
    path: Path,
    seeds: int = 1,
    vae: bool = False,
    evaluate: bool = False,
    fid: int | None = None,
    command: str | None = None,
    jobs: JobOptions | None = None,
) -> SweepResult | Submission:
    """Run a sweep with parsed options.

    Args:
        preset: Name of a preset, or the place of a definition such as `my_vae.py`.
        vary: Values by setting.
        overrides: Settings to change in every run.
        options: How to execute the runs.
        path: Folder of the sweep.
        seeds: Number of seeds per combination.
        vae: Train the plain VAE too.
        evaluate: Evaluate every run.
        fid: Number of images for FID and KID.
        command: Shell command that repeats the sweep.
        jobs: How runs become jobs, or None to train in this process.
    """
    source, options = resolve_source(preset, options)
    base = resolve_experiment(source, overrides, options.data_root, options.display.note)
    # All experiments are built before any folder is created: a wrong value leaves nothing behind.
    experiments = _build_experiments(preset, base, vary, vae)
    names = {label: re.sub(r"[^\w=.,()+-]", "_", label) for label in experiments}
    if len(set(names.values())) < len(names):
        listed = ", ".join(names.values())
        raise UserError(f"two values give the same folder name, of {listed}; rename one")
    command = command or shell_command("sweep", preset, *_vary_options(vary))
    plans = {
        label: plan_seeds(experiment, path / names[label], seeds, always_nested=True)
        for label, experiment in experiments.items()
    }
    runs = {label: plan.folders for label, plan in plans.items()}
    folders = [folder for group in runs.values() for folder in group]
    create = partial(_create_all, plans.values(), command, options.code)
    if jobs is not None and (evaluate or fid):
        jobs = replace(jobs, evaluate=("--fid", str(fid)) if fid else ())
    left = train_runs_anywhere(plan_runs(plans.values()), create, path, options, jobs)
    if left is not None:
        return left
    if evaluate or fid:
        evaluate_pending(folders, options.device, options.data_root, options.display, fid=fid)
    summary = write_sweep(runs, path, PLAIN_VAE if vae else None)
    photographs = isinstance(base.data, ImageSettings) and not isinstance(
        base.data, Shapes2D | Shapes3D
    )
    # On a CPU, FID is measured only on request.
    fid_option = ["--fid", fid or 1_000] if photographs and options.device.type == "cpu" else []
    report = shell_command("report", path, *fid_option, *options.data_root_arguments)
    return SweepResult(path, runs, summary, report)


def _create_all(plans: Iterable[Plan], command: str, code: str) -> list[RunFolder]:
    return [folder for plan in plans for folder in create_folders(plan, command, code=code)]


def _build_experiments(
    preset: str, base: Experiment, vary: Mapping[str, Sequence[Any]] | Sequence[str], vae: bool
) -> dict[str, Experiment]:
    """Return the experiments of a sweep by label."""
    settings = _varied_settings(vary)
    paths = [assignments[0].partition("=")[0] for assignments in settings]
    if len(set(paths)) < len(paths):
        raise UserError(f"--vary names a setting twice: {', '.join(paths)}")
    if vae and any(path.split(".")[0] != "control" for path in paths):
        raise UserError(
            "--vae compares with a single plain VAE, so --vary may change settings of control only"
        )
    experiments = {_label(chosen): override(base, list(chosen)) for chosen in product(*settings)}
    if vae:
        experiments = {PLAIN_VAE: replace(base, control=Constant(1.0)), **experiments}
    return {
        label: replace(one, name=f"{preset} ({label})", about=f"{label}, in a sweep of {preset}")
        for label, one in experiments.items()
    }


def _varied_settings(vary: Mapping[str, Sequence[Any]] | Sequence[str]) -> list[list[str]]:
    """Return the assignments of each varied setting."""
    if isinstance(vary, Mapping):
        return [
            [text for value in values for text in as_assignments({path: value})]
            for path, values in vary.items()
        ]
    return [split_values(text) for text in vary]


def _vary_options(vary: Mapping[str, Sequence[Any]] | Sequence[str]) -> list[str]:
    texts = vary
    if isinstance(vary, Mapping):
        texts = [f"{path}={','.join(map(str, values))}" for path, values in vary.items()]
    return [word for text in texts for word in ("--vary", text)]


def _label(assignments: tuple[str, ...]) -> str:
    """Return a label such as `target=14.5, ki=0.001`, with the last name of each path."""
    pairs = (assignment.partition("=") for assignment in assignments)
    return ", ".join(f"{path.rsplit('.', 1)[-1]}={value}" for path, _, value in pairs)
