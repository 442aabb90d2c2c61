"""Search for the best set point while one network trains: its range of rates closes in on it."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import RunError, UserError, shell_command
from controlvae.lab.api.curve import (
    DEFAULT_BINS,
    define_source,
    naming_the_command,
    parse_rates,
    train_curve,
)
from controlvae.lab.api.fit import source_name
from controlvae.lab.config import Experiment, RateRange, override, preset
from controlvae.lab.custom.definition import Definition, Model
from controlvae.lab.custom.task import recall_task, remember_task
from controlvae.lab.evaluation.rate_curve import run_at_rate
from controlvae.lab.evaluation.rate_measurement import calibrate, rate_range, resolve_rates
from controlvae.lab.evaluation.target_score import (
    Objective,
    best_rate,
    check_objective,
    name_objective,
    on_validation_examples,
    score_run,
)
from controlvae.lab.io import write_text
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.rate_curve import plot_search_path
from controlvae.lab.runs.branch import branch_runs
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, load_run
from controlvae.lab.runs.user_code import is_code, load_definition
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.runner import RunOptions, TrainingResult, resume_runs
from controlvae.laws import Law

# Share of the steps after which a stage ends, and the factor around the best rate so far that the
# next stage covers.
_STAGES = ((0.5, 2.0), (0.8, 1.25), (1.0, 0.0))
_RATES_PER_STAGE = 13
_STEPS = "training.steps="
_EXAMPLES = 10_000, 2_000  # of a measurement, on a GPU and on a CPU


@dataclass(frozen=True)
class StageResult:
    """What one stage of the search measured.

    Attributes:
        step: Training step.
        rates: Rates in nats.
        scores: Objective at each rate; higher is better.
        best: Rate of the highest score, between the rates that were measured.
    """

    step: int
    rates: tuple[float, ...]
    scores: tuple[float, ...]
    best: float


@dataclass(frozen=True)
class FoundTarget:
    """The best set point and the network trained for it.

    Attributes:
        run: The trained run, with its network fixed at the best rate.
        target: The best set point in nats.
        objective: What was maximised.
        stages: Measurements of each stage, on validation examples.
        reason: One line that says why.
        files: The files that were written.
    """

    run: LoadedRun
    target: float
    objective: str
    stages: tuple[StageResult, ...]
    reason: str
    files: tuple[Path, ...]


class StageUnfinishedError(RunError):
    """A stage was stopped by its time limit. The same call resumes."""


def find_target(
    model: Model | str | Experiment | Definition,
    dataset: Any = None,
    *,
    objective: Objective = "elbo",
    rates: tuple[float, float] = (2.0, 60.0),
    bins: int = DEFAULT_BINS,
    steps: int | None = None,
    law: Law | None = None,
    run: str | Path | None = None,
    overrides: Overrides = None,
    examples: int | None = None,
    device: str = "auto",
    checkpoint_every: str | float = 30.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    threads: str | int = "auto",
    **settings: Any,
) -> FoundTarget:
    """Find the best set point while one network trains.

    The network is trained for a range of rates, as by `lab.curve`. On the way the objective is
    measured on validation examples, and the range closes in on its best rate. The same call
    resumes.

    >>> found = lab.find_target(model, dataset, objective="iwae", steps=40_000, run="runs/auto")
    >>> found.target, found.reason
    >>> found.run.sample(64)

    Args:
        model: A module, of which a copy is trained, a class or function that returns one, or the
            name of a preset, an experiment or a definition.
        dataset: Data in any form that `lab.fit` takes. None for a preset.
        objective: `elbo`, `iwae`, `fid`, or a function of a run whose value is to be high.
        rates: Lowest and highest rate to consider, in nats.
        bins: Number of set points.
        steps: Number of optimiser steps. The default is that of the preset.
        law: Law of every set point's weight. The default is `cv.Auto`.
        run: Folder of the stages. The default is `runs/NAME-target`.
        overrides: Settings to change.
        examples: Number of examples of a measurement.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        checkpoint_every: Time between checkpoints.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        threads: Number of CPU threads, or `auto`.
        **settings: Further arguments of `define` for a module, such as `learning_rate`. 10 % of its
            data are held out for validation if `validation` is not given.

    Raises:
        UserError: If model, data or a setting is not usable.
        Interrupted: After Ctrl-C. The same call resumes.
    """
    check_objective(objective)
    options = RunOptions.parse(
        device, math.inf, checkpoint_every, False, data_root, progress, threads=threads
    )
    within = parse_rates(rates, bins)
    if not isinstance(model, str | Experiment | Definition):
        settings.setdefault("validation", 0.1)
    source = define_source(model, dataset, within, law, steps, settings)
    name = source_name(source) if isinstance(source, str) else source.name
    return find_best_target(
        source,
        within,
        options,
        objective,
        steps=steps,
        law=law,
        run=run or Path("runs") / f"{name}-target",
        overrides=overrides,
        examples=examples,
    )


def find_for_command(
    source: str,
    rates: RateRange,
    options: RunOptions,
    objective: Any,
    run: Path | None,
    overrides: Overrides,
    examples: int | None,
) -> list[str]:
    """Find the best set point of a preset with parsed options. Return lines for the user.

    Args:
        source: Name of a preset, or the place of a definition.
        rates: Range to search.
        options: How to execute the training.
        objective: Name of the objective.
        run: Folder of the stages, or None for the default.
        overrides: Settings to change. `training.steps` is that of all stages together.
        examples: Number of examples of a measurement.
    """
    try:
        with naming_the_command(options, "resumes"):
            found = find_best_target(
                source,
                rates,
                options,
                objective,
                run=run or Path("runs") / f"{source_name(source)}-target",
                overrides=overrides,
                examples=examples,
            )
    except StageUnfinishedError as error:
        return [f"{error}; the same command resumes"]
    use = shell_command("train", source, "--set", f"control=Auto({found.target:.4g})")
    return [found.reason, *map(str, found.files), f"train one model there with: {use}"]


def steps_of(source: str | Experiment | Definition, overrides: Overrides) -> int:
    """Return the number of steps of a preset, an experiment or a definition under overrides."""
    for text in reversed(as_assignments(overrides)):
        if text.startswith(_STEPS):
            return override(preset("shapes2d-quick"), [text]).training.steps  # parsed and checked
    if not isinstance(source, str):
        return source.training.steps
    return (
        load_definition(source).training.steps if is_code(source) else preset(source).training.steps
    )


def find_best_target(
    source: str | Experiment | Definition,
    rates: RateRange,
    options: RunOptions,
    objective: Objective = "elbo",
    *,
    steps: int | None = None,
    run: str | Path,
    law: Law | None = None,
    overrides: Overrides = None,
    examples: int | None = None,
    command: str | None = None,
) -> FoundTarget:
    """Train one network whose range of rates closes in on the best set point.

    The first stage covers the whole range. After half of the steps the objective is measured on
    validation examples at rates of the range, and the set points move to the neighbourhood of the
    best; so again later. At the end all set points are within a quarter of the result. Calling this
    again resumes.

    Args:
        source: Name of a preset, an experiment or a definition.
        rates: Range to search.
        options: How to execute the training.
        objective: `elbo`, `iwae`, `fid`, or a function of a run whose value is to be high.
        steps: Number of optimiser steps of all stages together. The default is that of the source.
        run: Folder of the stages.
        law: Law of every set point's weight.
        overrides: Settings to change.
        examples: Number of examples of a measurement.
        command: Shell command that repeats this.
    """
    check_objective(objective)
    folder, stages = Path(run), []
    stage = _stage_folder(folder, 1)
    steps = steps or steps_of(source, overrides)
    others = [each for each in as_assignments(overrides) if not each.startswith(_STEPS)]
    ends = _stage_ends(steps)
    first = [*others, f"{_STEPS}{ends[0]}"]
    _require_finished(
        train_curve(
            source, rates, options, law=law, run=stage.path, overrides=first, command=command
        )
    )
    for number, (share, factor) in enumerate(_STAGES, start=1):
        loaded = load_run(stage, root=options.data_root, device=options.device)
        title = f"measuring {name_objective(objective)} at {_RATES_PER_STAGE} rates"
        with options.display.bar(title) as report:
            stages.append(_measure_stage(loaded, objective, examples, report))
        if not factor:
            break
        focus = _neighbourhood(stages[-1].best, factor, rates)
        following = _stage_folder(folder, number + 1)
        _train_stage(stage, following, focus, ends[number], options)
        stage = following
        options.display.note(
            f"after {share:.0%} of the steps the best rate is {stages[-1].best:.3g} nats; "
            f"continuing with {focus[0]:.3g} to {focus[1]:.3g}"
        )
    return _finish(loaded, folder, name_objective(objective), stages, rates)


def _stage_ends(steps: int) -> list[int]:
    """Return the last step of each stage, or raise UserError if one has no step."""
    ends = [round(share * steps) for share, _ in _STAGES]
    if not 0 < ends[0] < ends[1] < ends[2]:
        raise UserError(f"finding a target takes three stages, so 4 steps or more, got {steps}")
    return ends


def _measure_stage(
    run: LoadedRun,
    objective: Objective,
    examples: int | None,
    progress: Callable[[float], None],
) -> StageResult:
    """Measure the objective over the rates of a stage."""
    wanted = resolve_rates(rate_range(run), _RATES_PER_STAGE)
    count = examples or run.example_budget(*_EXAMPLES)
    calibration, choosing = calibrate(run, count, wanted), on_validation_examples(run)
    scores = []
    for rate in wanted:
        fixed = run_at_rate(choosing, calibration.setting_for(rate))
        scores.append(score_run(fixed, objective, count))
        progress(len(scores) / len(wanted))
    return StageResult(run.step, wanted, tuple(scores), best_rate(wanted, scores))


def _neighbourhood(best: float, factor: float, rates: RateRange) -> tuple[float, float]:
    return max(rates.low, best / factor), min(rates.high, best * factor)


def _stage_folder(folder: Path, number: int) -> RunFolder:
    return RunFolder(folder / f"stage-{number}")


def _train_stage(
    before: RunFolder,
    stage: RunFolder,
    focus: tuple[float, float],
    steps: int,
    options: RunOptions,
) -> None:
    """Continue from the stage before with set points in a narrower range."""
    if not stage.experiment_file.is_file():
        wanted = f"({focus[0]!r},{focus[1]!r})"
        settings = [f"rates.focus={wanted}", "rates.ramp=0", f"training.steps={steps}"]
        command = shell_command("branch", before.path, stage.path)
        branch_runs([before], before.path, stage.path, settings, command, options.display.note)
    if (task := recall_task(before.path)) is not None:
        remember_task(stage.path, task)
    _require_finished(resume_runs([stage], options))


def _require_finished(result: TrainingResult | None) -> None:
    """Raise StageUnfinishedError if a time limit stopped a stage."""
    if result is not None and not result.finished:
        raise StageUnfinishedError(
            f"{result.folders[0].path} was stopped at step {result.step:,} of {result.steps:,}"
        )


def _finish(
    run: LoadedRun, folder: Path, objective: str, stages: list[StageResult], rates: RateRange
) -> FoundTarget:
    """Write the path of the search, and return the network at the best rate."""
    target = stages[-1].best
    reason = f"{objective} on validation examples is best at {target:.4g} nats"
    if target <= 1.02 * rates.low or target >= rates.high / 1.02:
        edge = "lower" if target <= 1.02 * rates.low else "upper"
        reason += f", the {edge} end of the range; search a wider one"
    content = {
        "target": target,
        "objective": objective,
        "reason": reason,
        "stages": [asdict(stage) for stage in stages],
    }
    data, figure = folder / "target.json", folder / "target.png"
    write_text(data, json.dumps(content, indent=1) + "\n")
    places = [(f"step {one.step:,}", one.rates, one.scores) for one in stages]
    save_figure(plot_search_path(places, target, objective), figure, step=run.step)
    calibration = calibrate(run, run.example_budget(*_EXAMPLES), [target])
    fixed = run_at_rate(run, calibration.setting_for(target))
    return FoundTarget(fixed, target, objective, tuple(stages), reason, (data, figure))
