"""Measuring a target: the plain VAE's KL, the reachable range, and a recommended set point."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD
from controlvae.errors import RunError, UserError, shell_command
from controlvae.lab.api.find_target import FoundTarget
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.api.target_budget import Budget, find_within_budget, make_budget
from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.submit import (
    JobOptions,
    Submission,
    make_job_options,
    plan_runs,
    train_runs_anywhere,
)
from controlvae.lab.config import Experiment, override
from controlvae.lab.evaluation.target_score import Objective
from controlvae.lab.reports.elbo_cost import count_latents
from controlvae.lab.runs.folder import RunFolder, mean_between, mean_of_last_tenth
from controlvae.lab.training.resolve import Overrides, as_assignments, resolve_experiment
from controlvae.lab.training.run_setup import Plan, plan_seeds
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import create_folders
from controlvae.laws import Capacity, Constant, Feedback
from controlvae.tuning.advice import PURPOSES, Advice
from controlvae.tuning.elbo_cost import elbo_cost
from controlvae.tuning.target_search import (
    ProbeResult,
    advise_from_probes,
    find_doubts,
    probe_weights,
)

# Multiples of the plain VAE's KL whose cost in ELBO is shown.
_HIGHER_RATES = (1.1, 1.25, 1.5, 2.0)


class TargetResult(NamedTuple):
    """Measured KLs, and the advice that follows from them."""

    advice: Advice
    readings: dict[float, ProbeResult]  # by fixed weight β
    runs: dict[float, RunFolder]
    summary: list[str]  # human-readable lines
    found: FoundTarget | None = None  # by a search within a budget


def measure_preset_target(
    preset: str,
    *,
    overrides: Overrides = None,
    purpose: str = "reconstruction",
    steps: int = 5_000,
    budget: int | None = None,
    objective: Objective | None = None,
    run: str | Path | None = None,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    cluster: Cluster | None = None,
    dry_run: bool = False,
) -> TargetResult | Submission:
    """Train the plain VAE and the law's two bounds briefly, and recommend a set point.

    Exported as `lab.measure_target`.

    Args:
        preset: Name of a preset, or the place of a definition such as `my_vae.py`.
        overrides: Settings to change.
        purpose: What the target is for: `reconstruction`, `no-collapse`, `disentangling`, `rate`
            or `elbo`. Another purpose with the same `run` needs no further training.
        steps: Number of steps before the KL is read.
        budget: Number of further steps to spend on a search for the best set point, as
            `lab.find_target` does.
        objective: What the search maximises: `elbo` (the default), `iwae`, `fid`, or a function of
            a run.
        run: Folder of the runs. The default is `runs/PRESET-target`.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        cluster: `lab.Slurm(...)` or `lab.Local(...)` trains in jobs. The default is this process.
        dry_run: Show the plan of the jobs, and do nothing.

    Returns:
        The advice and the measurements behind it. A dry run, or jobs that are not waited for,
        return what was planned or submitted.
    """
    jobs, device = make_job_options(cluster, device, dry_run)
    options = RunOptions.parse(device, time_limit, checkpoint_every, False, data_root, progress)
    path = Path(run) if run is not None else Path("runs") / f"{source_name(preset)}-target"
    return run_target_search(
        preset,
        overrides,
        options,
        path=path,
        steps=steps,
        purpose=purpose,
        jobs=jobs,
        budget=make_budget(budget, objective),
    )


def run_target_search(
    preset: str,
    overrides: Overrides,
    options: RunOptions,
    *,
    path: Path,
    steps: int,
    purpose: str = "reconstruction",
    command: str | None = None,
    jobs: JobOptions | None = None,
    budget: Budget | None = None,
) -> TargetResult | Submission:
    """Measure a target with parsed options.

    Args:
        preset: Name of a preset, or the place of a definition such as `my_vae.py`.
        overrides: Settings to change.
        options: How to execute the runs.
        path: Folder of the runs.
        steps: Number of steps before the KL is read.
        purpose: What the target is for, one of `PURPOSES`.
        command: Shell command that repeats the measurement.
        jobs: How runs become jobs, or None to train in this process.
        budget: Steps to spend on a search for the best set point, or None for no search.
    """
    if budget is not None and jobs is not None:
        raise UserError("a search within a budget trains in this process: leave out --cluster")
    if purpose not in PURPOSES:
        raise UserError(f"purpose (--for) is one of {', '.join(PURPOSES)}, got {purpose!r}")
    assignments = as_assignments(overrides)
    source, options = resolve_source(preset, options)
    full = resolve_experiment(source, assignments, options.data_root, options.display.note)
    base = _with_frequent_log(override(full, [f"training.steps={steps}"]))
    low, high = _check_bounds(preset, base)
    try:
        weights = probe_weights(low, high)
    except ValueError as error:
        raise UserError(str(error)) from None
    command = command or shell_command("target", preset, "--steps", steps)
    plans = {weight: _plan_probe(base, weight, path) for weight in weights}

    def create() -> list[RunFolder]:
        return [create_folders(plan, command, code=options.code)[0] for plan in plans.values()]

    left = train_runs_anywhere(plan_runs(plans.values()), create, path, options, jobs)
    if left is not None:
        return left
    runs = {weight: plan.folders[0] for weight, plan in plans.items()}
    _check_logs(runs.values())
    readings = {weight: _read_kl(folder) for weight, folder in runs.items()}
    summary = _describe_readings(runs, readings, steps, base.training.log_every)
    used = count_latents(runs[1.0].records()[-1].get("kl_per_latent"))
    try:
        advice = advise_from_probes(readings, high, purpose, used)
    except ValueError as error:
        raise UserError(str(error)) from None
    reached = _last_common_step(runs)
    summary += _describe_advice(readings, advice, steps, finished=reached >= steps)
    summary += _describe_costs(advice, used)
    if budget is None:
        summary += _next_commands(preset, full, advice, assignments, options)
        return TargetResult(advice, readings, runs, summary)
    found, lines = find_within_budget(
        preset, advice, budget, options, path=path / "search", overrides=assignments
    )
    return TargetResult(advice, readings, runs, [*summary, *lines], found)


def _plan_probe(base: Experiment, weight: float, path: Path) -> Plan:
    constant = replace(base, control=Constant(weight))
    return plan_seeds(constant, path / f"beta-{weight:g}", 1, always_nested=True)


def _check_bounds(preset: str, experiment: Experiment) -> tuple[float, float]:
    """Return the bounds of the weight. A schedule or a capacity counts as a law from 0 to 1."""
    controlled = experiment.controlled_quantity
    if controlled != "kl":
        raise UserError(f"{preset} controls {controlled}, but the paper's band is about the KL")
    law, (low, high) = experiment.control, (0.0, 1.0)
    if isinstance(law, Feedback) and not isinstance(law, Capacity):
        low, high = law.bounds
    if low >= 1:
        raise UserError(
            f"the weight of {preset} never falls below {low:g}, so its KL stays below the plain "
            "VAE's and the paper's band does not apply; measure the plain VAE with: "
            "--set 'control=PI(1)'"
        )
    return low, high


def _with_frequent_log(experiment: Experiment) -> Experiment:
    """Return the experiment with at least 20 log lines.

    A tenth of the steps is then a whole number of lines.

    The interval divides the preset's, so settings that count log lines keep their meaning.
    """
    interval, steps = experiment.training.log_every, experiment.training.steps
    limit = max(1, min(interval, steps // 20))
    every = max(n for n in range(1, limit + 1) if interval % n == 0)
    return replace(experiment, training=replace(experiment.training, log_every=every))


def _check_logs(folders: Any) -> None:
    for folder in folders:
        if any(event["event"] == "diverged" for event in folder.events()):
            raise RunError(
                f"{folder.path} diverged, so its KL means nothing; try a smaller optimiser.rate"
            )
        if not folder.records():
            raise UserError(f"{folder.path} has no log yet; allow more time")


def _read_kl(folder: RunFolder) -> ProbeResult:
    records = folder.records()
    return ProbeResult(mean_of_last_tenth(records, "kl"), mean_between(records, "kl", 0.4, 0.5))


def _last_common_step(runs: dict[float, RunFolder]) -> int:
    return min(folder.records()[-1]["step"] for folder in runs.values())


def _describe_readings(
    runs: dict[float, RunFolder], readings: dict[float, ProbeResult], steps: int, log_every: int
) -> list[str]:
    reached = _last_common_step(runs)
    budget = "" if reached >= steps else f" of {steps:,}"
    tail = max(reached // 10, log_every)
    lines = [
        f"after {reached:,} steps{budget}, nats per example, "
        f"means over the last {tail:,} training batches:"
    ]
    for weight, folder in runs.items():
        name = "plain VAE"
        if weight != 1:
            name = "at the lower bound" if weight < 1 else "at the upper bound"
        reconstruction = mean_of_last_tenth(folder.records(), "reconstruction")
        lines.append(
            f"  {name:24s} β {weight:<6g} KL {readings[weight].kl:9.2f}   "
            f"reconstruction {reconstruction:10.2f}"
        )
    return lines


def _describe_advice(
    readings: dict[float, ProbeResult], advice: Advice, steps: int, finished: bool
) -> list[str]:
    longer = "the same command resumes"
    if finished:
        longer = f"train longer, with another --run: --steps {4 * steps}"
    return [
        *(f"{doubt}; {longer}" for doubt in find_doubts(readings, advice)),
        f"reachable: {advice.reachable.low:.1f} to {advice.reachable.high:.1f} nats",
        f"the paper's band: {advice.band.low:.1f} to {advice.band.high:.1f} nats",
        f"purpose: {PURPOSES[advice.purpose]} (--for {advice.purpose})",
        f"recommended set point: {advice.target:.3g} nats",
        f"reason: {advice.reason}",
    ]


def _describe_costs(advice: Advice, latents: int | None) -> list[str]:
    """Return what the recommended set point costs in ELBO, and what higher ones would."""
    kl = advice.band.low
    lines = [f"expected cost in ELBO: {advice.describe_cost()}"]
    if not latents or kl < COLLAPSE_THRESHOLD:
        return lines
    higher = [factor * kl for factor in _HIGHER_RATES if factor * kl <= advice.reachable.high]
    if advice.purpose in ("reconstruction", "rate") and higher:
        costs = (f"{rate:.3g} nats {elbo_cost(rate - kl, latents):.2g}" for rate in higher)
        lines.append(f"  of other set points: {', '.join(costs)}")
    if advice.cost:
        formula = "(n/2)(2d/n − 1 + exp(−2d/n))"
        d = f"d = {advice.target - kl:.3g} nats above the plain VAE's KL"
        lines.append(f"  {formula} for n = {latents} used latents and {d}".replace("= -", "= −"))
    return lines


def _next_commands(
    preset: str, base: Experiment, advice: Advice, assignments: list[str], options: RunOptions
) -> list[str]:
    """Return the commands that train at the recommended set point."""
    shared = [f"--set {quote(text)}" for text in assignments]
    shared += map(quote, options.data_root_arguments)
    words = ["train with: controlvae train", preset, *shared]
    if advice.purpose == "elbo":
        return [" ".join([*words, "--set 'control=Constant(1)'"])]
    has_target = isinstance(base.control, Feedback) and not isinstance(base.control, Capacity)
    chosen = f"--set 'control=PI({advice.target:.3g})'"
    if has_target:
        chosen = f"--set control.target={advice.target:.3g}"
    if advice.target < advice.reachable.low:  # the law's largest weight is too small
        chosen = f"--set 'control=PI({advice.target:.3g}, beta_max=inf)'"
    if advice.purpose == "disentangling":
        ramp = f"Linear(0.5, {advice.target:.3g}, steps={base.training.steps // 2})"
        chosen = f"--set 'control=PI({ramp}, beta_min=1, beta_max=inf)'"
    lines = [" ".join([*words, chosen])]
    if has_target and chosen.startswith("--set control.target="):
        words = ["compare with the plain VAE: controlvae sweep", preset, *shared]
        lines.append(" ".join([*words, chosen.replace("--set", "--vary", 1), "--vae"]))
    return lines
