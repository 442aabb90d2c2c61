"""Rate-distortion curve of one network: training with all set points, and measurement."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.api.train import start_training
from controlvae.lab.config import Experiment, RateRange, override, preset
from controlvae.lab.custom.arguments import check_names
from controlvae.lab.custom.definition import Definition, Model, define
from controlvae.lab.custom.task import remember_task
from controlvae.lab.engines.rate_bins import with_target
from controlvae.lab.evaluation.rate_curve import (
    CURVE_FILE,
    RateCurve,
    measure_curve,
    resolve_rates,
    run_at_rate,
)
from controlvae.lab.io import write_csv, write_text
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.rate_curve import plot_images_along, plot_rate_curve
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import LoadedRun, as_folder, image_model, load_run, load_runs
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.runner import RunOptions, TrainingResult, resume_runs
from controlvae.laws import Auto, Feedback, Law

DEFAULT_BINS = 8


@dataclass(frozen=True)
class CurveResult:
    """A rate-conditioned run and its measured curve.

    Attributes:
        run: The trained run.
        curve: Its rate-distortion curve on held-out examples.
        files: The files that were written.
    """

    run: LoadedRun
    curve: RateCurve
    files: tuple[Path, ...]

    def at(self, rate: float) -> LoadedRun:
        """Return the run with its network fixed at a rate in nats.

        The rate is that of held-out examples, by the curve's calibration.
        """
        return run_at_rate(self.run, self.curve.setting_for(rate))

    def plot(self) -> Any:
        """Return a matplotlib figure of the curve."""
        return plot_rate_curve(self.curve)


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
    overrides: Overrides = None,
    beside: str | Path | Sequence[str | Path] = (),
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
        run: Run folder. The default is `runs/NAME-curve`.
        overrides: Settings to change, such as `{"training.batch": 128}`.
        beside: Run folders of single set points on the same data, drawn for comparison.
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
        beside=[beside] if isinstance(beside, str | Path) else list(beside),
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
    beside: Sequence[str | Path] = (),
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
        beside: Run folders, or folders of runs, of single set points.
        examples: Number of examples to measure.
        fid: Number of images for FID at every rate.
        **training: Further arguments of `train_curve`.
    """
    for path in beside:  # before hours of training
        if not find_runs(Path(path)):
            raise UserError(f"{path} holds no run to compare with")
    resolve_rates(rates, points)
    result = train_curve(source, rates, options, **training)
    return measure_run_curve(
        result.folders[0], options, points=points, beside=beside, examples=examples, fid=fid
    )


def describe_curve(found: RateCurve) -> list[str]:
    """Return human-readable lines about a curve: a verdict, then a table."""
    best, low, high = found.best, found.points[0].rate, found.points[-1].rate
    verdict = (
        f"{len(found.points)} rates from {low:g} to {high:g} nats, each within "
        f"{100 * found.largest_error:.1f} % on {found.examples:,} examples ({found.split})"
    )
    lines = [verdict, f"best ELBO {best.elbo:.2f} nats, at {best.rate:.3g} nats"]
    titles = ("nats", "measured", "reconstruction", "ELBO", "price of a nat")
    lines.append("  ".join(f"{title:>14}" for title in titles))
    for point in (*found.points, *found.beside):
        price = "-" if point.price is None else f"{point.price:.3g}"
        values = (f"{point.rate:.2f}", f"{point.kl:.2f}", f"{point.reconstruction:.2f}")
        cells = (*values, f"{point.elbo:.2f}", price)
        lines.append("  ".join(f"{cell:>14}" for cell in cells) + f"  {point.label}".rstrip())
    return lines


def define_source(
    model: Any,
    dataset: Any,
    rates: RateRange,
    law: Law | None,
    steps: int | None,
    settings: dict[str, Any],
) -> str | Experiment | Definition:
    """Return what to train: a preset or an experiment as it is, a module with its settings."""
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
    return override(experiment, as_assignments(overrides))


def _train_new(
    experiment: Experiment, folder: RunFolder, options: RunOptions, command: str
) -> TrainingResult:
    result = start_training(experiment, options=options, run=folder.path, command=command)
    assert isinstance(result, TrainingResult)
    return result


def measure_run_curve(
    run: LoadedRun | RunFolder | str | Path,
    options: RunOptions,
    *,
    points: int | Sequence[float] = 25,
    beside: Sequence[str | Path] = (),
    examples: int | None = None,
    fid: int = 0,
) -> CurveResult:
    """Measure the curve of a trained run, and write it with its figures into the run folder.

    Args:
        run: Rate-conditioned run.
        options: Device, data folder and display.
        points: Number of points of the curve, or their rates.
        beside: Run folders, or folders of runs, of single set points.
        examples: Number of examples to measure.
        fid: Number of images for FID at every rate.
    """
    root, device = options.data_root, options.device
    loaded = (
        run if isinstance(run, LoadedRun) else load_run(as_folder(run), root=root, device=device)
    )
    folders = [folder for path in beside for folder in find_runs(Path(path))]
    others = load_runs(folders, root=root, device=device) if folders else []
    separate = [others] if isinstance(others, LoadedRun) else others
    with options.display.bar("measuring the curve") as report:
        found = measure_curve(
            loaded, points, beside=separate, examples=examples, fid=fid, progress=report
        )
    return CurveResult(loaded, found, tuple(_write(loaded, found)))


def _write(run: LoadedRun, found: RateCurve) -> list[Path]:
    """Write the curve as JSON, CSV and figures. Return the files."""
    folder, step = run.folder, run.step
    data, table = folder.path / CURVE_FILE, folder.path / "curve.csv"
    write_text(data, json.dumps(found.to_dict(), indent=1) + "\n")
    columns = ("label", "rate", "kl", "error", "reconstruction", "elbo", "price", "fid", "setting")
    points = (*found.points, *found.beside)
    write_csv(table, columns, [[getattr(point, name) for name in columns] for point in points])
    files = [data, table]
    files.append(save_figure(plot_rate_curve(found), folder.figures / "curve.png", step=step))
    try:
        image_model(run)
        shows_images = len(run.shape) == 3
    except UserError:
        shows_images = False
    if shows_images:
        figure = plot_images_along(run, found)
        files.append(save_figure(figure, folder.figures / "curve-images.png", step=step))
    return files
