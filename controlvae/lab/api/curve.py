"""Rate-distortion curve of one network: training with all set points, and measurement."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.curve_results import (
    CurveResult,
    measure_network_curve,
    measure_run_curve,
)
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.api.separate_networks import train_networks
from controlvae.lab.api.train import start_training
from controlvae.lab.config import Experiment, RateRange, override, preset
from controlvae.lab.custom.arguments import check_names
from controlvae.lab.custom.definition import Definition, Model, define
from controlvae.lab.custom.task import remember_task
from controlvae.lab.engines.rate_bins import with_target
from controlvae.lab.evaluation.rate_measurement import resolve_rates
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.runner import RunOptions, TrainingResult, resume_runs
from controlvae.laws import Auto, Feedback, Law

DEFAULT_BINS = 8


def curve(
    model: Model | str | Experiment | Definition,
    dataset: Any = None,
    *,
    rates: tuple[float, float] = (3.0, 24.0),
    bins: int = DEFAULT_BINS,
    points: int | Sequence[float] = 25,
    law: Law | None = None,
    steps: int | None = None,
    run: str | Path | None = None,
    separate: bool = False,
    overrides: Overrides = None,
    compare: str | Path | Sequence[str | Path] = (),
    examples: int | None = None,
    fid: int = 0,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    threads: str | int = "auto",
    **settings: Any,
) -> CurveResult:
    """Train one network for all rates of a range, and measure its rate-distortion curve.

    Each example of a batch has one of several set points. Scale and shift of every layer depend on
    it, and a controller for each set point holds the KL there. The same call resumes a run that was
    stopped.

    >>> result = lab.curve(model, dataset, rates=(2, 60), steps=40_000, run="runs/curve")
    >>> result.curve.at(18.0).reconstruction
    >>> result.at(18.0).sample(64)

    Args:
        model: A module of convolutions and linear layers, of which a copy is trained, or a class or
            function that returns one. Or the name of a preset, an experiment or a definition.
        dataset: Data in any form that `lab.fit` takes. None for a preset.
        rates: Lowest and highest rate, in nats.
        bins: Number of set points. The batch must be a multiple of it.
        points: Number of points of the curve, or their rates.
        law: Law of every set point's weight. The default is `cv.Auto`.
        steps: Number of optimiser steps. The default is that of the preset.
        run: Run folder. The default is `runs/NAME-curve`, or `-separate` with `separate`.
        separate: Train a network for every point instead, each continued from its neighbour at a
            higher rate. On a GPU they train side by side.
        overrides: Settings to change, such as `{"training.batch": 128}`.
        compare: Run folders of single set points on the same data, drawn for comparison.
        examples: Number of examples to measure. The default is 10,000 on a GPU and 2,000 on a CPU.
        fid: Number of images for FID at every rate. Zero skips it.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        threads: Number of CPU threads, or `auto`.
        **settings: Further arguments of `define` for a module, such as `learning_rate`.

    Raises:
        UserError: If model, data or a setting is not usable.
        Interrupted: After Ctrl-C. The same call resumes.
    """
    options = RunOptions.parse(
        device, time_limit, checkpoint_every, False, data_root, progress, threads=threads
    )
    within = parse_rates(rates, bins)
    return curve_of_preset(
        define_source(model, dataset, within, law, steps, settings),
        within,
        options,
        law=law,
        steps=steps,
        points=points,
        run=run,
        overrides=overrides,
        compare=[compare] if isinstance(compare, str | Path) else list(compare),
        separate=separate,
        examples=examples,
        fid=fid,
    )


def parse_rates(rates: Any, bins: int) -> RateRange:
    """Return a range of rates from two numbers or texts.

    Raises:
        UserError: If they are not two positive numbers, the lower first.
    """
    try:
        low, high = (float(rate) for rate in rates)
    except (TypeError, ValueError):
        raise UserError(
            f"rates must be the lowest and the highest rate in nats, such as 3,24; got {rates!r}"
        ) from None
    try:
        return RateRange(low, high, bins)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def curve_of_preset(
    source: str | Experiment | Definition,
    rates: RateRange,
    options: RunOptions,
    *,
    points: int | Sequence[float] = 25,
    compare: Sequence[str | Path] = (),
    separate: bool = False,
    examples: int | None = None,
    fid: int = 0,
    **training: Any,
) -> CurveResult:
    """Train and measure with parsed options.

    Args:
        source: Name of a preset, an experiment or a definition.
        rates: Range of rates.
        options: How to execute the run.
        points: Number of points of the curve, or their rates.
        compare: Run folders, or folders of runs, of single set points.
        separate: Train a network for every point.
        examples: Number of examples to measure.
        fid: Number of images for FID at every rate.
        **training: Further arguments of `train_curve`.
    """
    for path in compare:  # before hours of training
        if not find_runs(Path(path)):
            raise UserError(f"{path} holds no run to compare with")
    wanted = resolve_rates(rates, points)
    if fid == 1 or fid < 0:
        raise UserError(f"fid takes 2 images or more, or 0 for none, got {fid}")
    measuring: dict[str, Any] = {"compare": compare, "examples": examples, "fid": fid}
    with naming_the_command(options, "resumes and measures the curve"):
        if separate:
            folders = train_networks(source, wanted, options, **training)
            path = folders[0].path.parent.parent
            return measure_network_curve(folders, path, wanted, options, **measuring)
        result = train_curve(source, rates, options, **training)
        return measure_run_curve(result.folders[0], options, points=points, **measuring)


@contextmanager
def naming_the_command(options: RunOptions, does: str) -> Iterator[None]:
    """Print after Ctrl-C that the same command resumes; `resume` would only train.

    Args:
        options: Options with the display.
        does: What the command does when it is repeated.
    """
    try:
        yield
    except KeyboardInterrupt:
        options.display.note(f"the same command {does}")
        raise


def define_source(
    model: Any,
    dataset: Any,
    rates: RateRange,
    law: Law | None,
    steps: int | None,
    settings: dict[str, Any],
) -> str | Experiment | Definition:
    """Return what to train: a preset or an experiment as it is, a module with its settings.

    Args:
        model: Name of a preset, an experiment, a definition or a module.
        dataset: Data of a module, None otherwise.
        rates: Range of rates.
        law: Law of every set point's weight, or None for `Auto`.
        steps: Number of optimiser steps of a module.
        settings: Further arguments of `define` for a module.
    """
    if isinstance(model, str | Experiment | Definition):
        if settings or dataset is not None:
            name = next(iter(settings), "dataset")
            raise UserError(f"{name} is for your own model; a preset takes overrides={{...}}")
        return model
    if steps is None:
        raise UserError(
            "steps is missing: pass the number of optimiser steps, such as steps=20_000"
        )
    check_names(settings, define)
    return define(model, dataset, law=law or Auto(rates.middle), steps=steps, **settings)


def train_curve(
    source: str | Experiment | Definition,
    rates: RateRange,
    options: RunOptions,
    *,
    law: Law | None = None,
    steps: int | None = None,
    run: str | Path | None = None,
    overrides: Overrides = None,
    command: str | None = None,
) -> TrainingResult:
    """Train a rate-conditioned run, or resume it if its folder has one with the same settings.

    Args:
        source: Name of a preset, an experiment or a definition.
        rates: Range of rates.
        options: How to execute the run.
        law: Law of every set point's weight. None keeps a law of user-supplied code, and is `Auto`
            for a preset.
        steps: Number of optimiser steps.
        run: Run folder.
        overrides: Settings to change.
        command: Shell command that repeats the training.
    """
    name = source_name(source) if isinstance(source, str) else getattr(source, "name", "custom")
    given, options = resolve_source(source, options)
    experiment = _rate_experiment(given, rates, law, steps, overrides)
    folder = RunFolder(Path(run) if run is not None else Path("runs") / f"{name}-curve")
    command = command or shell_command("curve", name, "--run", folder.path)
    if not folder.experiment_file.is_file():
        return _train_new(experiment, folder, options, command)
    if folder.experiment() != experiment:
        raise UserError(
            f"{folder.path} holds a run with other settings; choose another --run, or repeat the "
            "command that started it"
        )
    if options.task is not None:
        remember_task(folder.path, options.task)
    resumed = resume_runs([folder], options)
    return resumed or TrainingResult([folder], experiment.training.steps, experiment.training.steps)


def _rate_experiment(
    given: str | Experiment,
    rates: RateRange,
    law: Law | None,
    steps: int | None,
    overrides: Overrides,
) -> Experiment:
    """Return an experiment with a range of rates."""
    base = preset(given) if isinstance(given, str) else given
    if law is None:
        reads_user_code = not isinstance(given, str) and isinstance(base.control, Feedback)
        law = with_target(base.control, rates.middle) if reads_user_code else Auto(rates.middle)
    training = base.training if steps is None else replace(base.training, steps=steps)
    try:
        experiment = replace(
            base, name=f"{base.name}-curve", control=law, training=training, rates=rates
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    experiment = override(experiment, as_assignments(overrides))
    if experiment.rates is None:
        raise UserError("a curve needs a range of rates; leave out rates=none")
    return experiment


def _train_new(
    experiment: Experiment, folder: RunFolder, options: RunOptions, command: str
) -> TrainingResult:
    result = start_training(experiment, options=options, run=folder.path, command=command)
    assert isinstance(result, TrainingResult)
    return result
