"""Measured curves: what `lab.curve` returns, writes and prints."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.evaluation.rate_curve import CURVE_FILE, CurvePoint, RateCurve, run_at_rate
from controlvae.lab.evaluation.rate_measurement import measure_curve, measure_networks
from controlvae.lab.io import write_csv, write_text
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.rate_curve import plot_images_along, plot_rate_curve
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_folder,
    image_model,
    load_run,
    on_unseen_examples,
)
from controlvae.lab.training.runner import RunOptions


@dataclass(frozen=True)
class CurveResult:
    """Trained networks and their measured curve.

    Attributes:
        run: The rate-conditioned run. Of separate networks, the run of the highest ELBO.
        curve: Rate-distortion curve on held-out examples.
        files: The files that were written.
        networks: Runs of separate networks, one per point of the curve.
    """

    run: LoadedRun
    curve: RateCurve
    files: tuple[Path, ...]
    networks: tuple[LoadedRun, ...] = ()

    def at(self, rate: float) -> LoadedRun:
        """Return the run with its network fixed at a rate in nats.

        The rate is that of held-out examples, by the curve's calibration. Of separate networks it
        is the run whose KL is closest.
        """
        if not self.networks:
            return run_at_rate(self.run, self.curve.setting_for(rate))
        wanted = self.curve.at(rate).kl  # checks the rate
        distances = [abs(math.log(point.kl / wanted)) for point in self.curve.points]
        return self.networks[distances.index(min(distances))]

    def plot(self) -> Any:
        """Return a matplotlib figure of the curve."""
        return plot_rate_curve(self.curve)


def measure_run_curve(
    run: LoadedRun | RunFolder | str | Path,
    options: RunOptions,
    *,
    points: int | Sequence[float] = 25,
    compare: Sequence[str | Path] = (),
    examples: int | None = None,
    fid: int = 0,
) -> CurveResult:
    """Measure the curve of a trained run, and write it with its figures into the run folder.

    Args:
        run: Rate-conditioned run.
        options: Device, data folder and display.
        points: Number of points of the curve, or their rates.
        compare: Run folders, or folders of runs, of single set points.
        examples: Number of examples to measure.
        fid: Number of images for FID at every rate.
    """
    root, device = options.data_root, options.device
    loaded = (
        run if isinstance(run, LoadedRun) else load_run(as_folder(run), root=root, device=device)
    )
    separate = _load_comparable(loaded, compare, options)
    with options.display.bar("measuring the curve") as report:
        found = measure_curve(
            loaded, points, separate=separate, examples=examples, fid=fid, progress=report
        )
    unseen = on_unseen_examples(loaded)

    def run_of(point: CurvePoint) -> LoadedRun:
        assert point.setting is not None
        return run_at_rate(unseen, point.setting)

    return CurveResult(loaded, found, tuple(_write(loaded.folder, found, run_of)))


def measure_network_curve(
    folders: Sequence[RunFolder],
    path: Path,
    rates: Sequence[float],
    options: RunOptions,
    *,
    compare: Sequence[str | Path] = (),
    examples: int | None = None,
    fid: int = 0,
) -> CurveResult:
    """Measure the curve of networks for one rate each, and write it with its figures.

    Args:
        folders: Run of each rate.
        path: Folder of the curve.
        rates: Rates that the networks were trained for, ascending.
        options: Device, data folder and display.
        compare: Run folders, or folders of runs, of single set points.
        examples: Number of examples to measure.
        fid: Number of images for FID at every rate.
    """
    networks = _load_all(folders, options)
    separate = _load_comparable(networks[0], compare, options)
    with options.display.bar("measuring the curve") as report:
        found = measure_networks(
            networks, rates, separate=separate, examples=examples, fid=fid, progress=report
        )
    by_label = {str(run.folder.path): run for run in networks}
    files = _write(RunFolder(path), found, lambda point: on_unseen_examples(by_label[point.label]))
    best = by_label[found.best.label]
    return CurveResult(best, found, tuple(files), tuple(networks))


def _load_comparable(
    run: LoadedRun, compare: Sequence[str | Path], options: RunOptions
) -> list[LoadedRun]:
    """Load the runs to compare with, and name those whose nats mean something else.

    Args:
        run: Run that they are compared with.
        compare: Run folders, or folders of runs.
        options: Device, data folder and display.
    """
    found = _load_all([folder for path in compare for folder in find_runs(Path(path))], options)
    for other in found:
        if not _is_comparable(run, other):
            options.display.note(
                f"{other.folder.path} has other data or another likelihood; it is not compared"
            )
    return [other for other in found if _is_comparable(run, other)]


def _is_comparable(run: LoadedRun, other: LoadedRun) -> bool:
    """Return whether the nats of two runs mean the same."""
    return (
        type(run.experiment.data) is type(other.experiment.data)
        and run.shape == other.shape
        and run.experiment.objective.likelihood == other.experiment.objective.likelihood
    )


def _load_all(folders: Sequence[RunFolder], options: RunOptions) -> list[LoadedRun]:
    return [load_run(one, root=options.data_root, device=options.device) for one in folders]


def _write(
    folder: RunFolder, found: RateCurve, run_of: Callable[[CurvePoint], LoadedRun]
) -> list[Path]:
    """Write the curve as JSON, CSV and figures. Return the files.

    Args:
        folder: Folder of the curve.
        found: The curve.
        run_of: Returns the run at a point.
    """
    step, run = found.step, run_of(found.points[0])
    data, table = folder.path / CURVE_FILE, folder.path / "curve.csv"
    write_text(data, json.dumps(found.to_dict(), indent=1) + "\n")
    columns = ("label", "rate", "kl", "error", "reconstruction", "elbo", "price", "fid", "setting")
    points = (*found.points, *found.separate)
    write_csv(table, columns, [[getattr(point, name) for name in columns] for point in points])
    files = [data, table]
    files.append(save_figure(plot_rate_curve(found), folder.figures / "curve.png", step=step))
    try:
        image_model(run)
        shows_images = len(run.shape) == 3
    except UserError:
        shows_images = False
    if shows_images:
        figure = plot_images_along(found, run_of)
        files.append(save_figure(figure, folder.figures / "curve-images.png", step=step))
    return files


def describe_curve(found: RateCurve) -> list[str]:
    """Return human-readable lines about a curve: a verdict, then a table."""
    best, low, high = found.best, found.points[0].rate, found.points[-1].rate
    networks = ", a network each" if found.of_separate_networks else ""
    verdict = (
        f"{len(found.points)} rates from {low:g} to {high:g} nats{networks}, each within "
        f"{100 * found.largest_error:.1f} % on {found.examples:,} examples ({found.split})"
    )
    lines = [verdict, f"best ELBO {best.elbo:.2f} nats, at {best.rate:.3g} nats"]
    titles = ("nats", "measured", "reconstruction", "ELBO", "price of a nat")
    lines.append("  ".join(f"{title:>14}" for title in titles))
    for point in (*found.points, *found.separate):
        price = "-" if point.price is None else f"{point.price:.3g}"
        values = (f"{point.rate:.2f}", f"{point.kl:.2f}", f"{point.reconstruction:.2f}")
        cells = (*values, f"{point.elbo:.2f}", price)
        lines.append("  ".join(f"{cell:>14}" for cell in cells) + f"  {point.label}".rstrip())
    return lines
