"""Evaluation from Python: metrics and figures of runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from controlvae.errors import FactorsError, Interrupted, UserError, shell_command
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.data.dataset import holds_images
from controlvae.lab.engines.device import pick_device
from controlvae.lab.evaluation.cache import (
    DEFAULT_EXAMPLES,
    CachedEvaluation,
    evaluate_cached,
    evaluate_with_progress,
    load_for_evaluation,
    previous_factors,
    select_pending,
)
from controlvae.lab.evaluation.iwae import IMPORTANCE_SAMPLES
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.evaluation.selection import select_metrics
from controlvae.lab.evaluation.udr import compare_runs
from controlvae.lab.plots.figure_files import read_step, save_figure, save_pixels
from controlvae.lab.plots.image_grid import save_reconstructions
from controlvae.lab.plots.mutual_information import plot_mutual_information
from controlvae.lab.plots.samples import make_sample_grid
from controlvae.lab.plots.traversal import plot_traversal
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import LoadedRun, as_folder
from controlvae.lab.training.display import Display, make_display


def evaluate(
    run: LoadedRun | RunFolder | str | Path,
    *,
    examples: int = DEFAULT_EXAMPLES,
    fid: int | None = None,
    iwae: int = IMPORTANCE_SAMPLES,
    factors: str | None = None,
    thorough: bool = False,
    metrics: str | Sequence[str] | None = None,
    weights: Mapping[str, str | Path] | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    progress: bool | Callable[[float], None] = True,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Measure every metric that applies to a run, and write `metrics.json`.

    The newest checkpoint is measured, on the test set if there is one. Disentanglement scores need
    factors and use the training set, which is larger. Metrics that need a package, weights, several
    models or minutes are measured if they are named.

    Args:
        run: Run, run folder, or folder of runs.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID. The default is 10,000 on a GPU and none on a CPU.
        iwae: Importance samples per example for the tighter bound. Zero skips it.
        factors: Table of factors `FILE[:A,B]`, instead of `data.factors`.
        thorough: Measure as many examples on a CPU as on a GPU.
        metrics: Entries of metrics.json to measure, such as `["infomec", "lpips"]`, or `"all"`. The
            others of the same weights are kept. The default leaves out optional ones.
        weights: Files of networks: `dinov2` for FD-DINOv2, `mauve` for the folder of a language
            model. Nothing is downloaded.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives the done fraction.

    Returns:
        The metrics, or a list of them for a folder of runs.

    Raises:
        UserError: If a run has no checkpoint, or its data is missing.
    """
    if data_root is None and isinstance(run, LoadedRun):
        data_root = run.root
    results = evaluate_each(
        as_folder(run).path,
        examples=examples,
        fid=fid,
        iwae=iwae,
        factors=factors,
        thorough=thorough,
        device=device,
        data_root=None if data_root is None else Path(data_root),
        display=make_display(progress),
        selection=select_metrics(metrics, weights),
    )
    measured = [found for _, found in results]
    return measured[0] if len(measured) == 1 else measured


def evaluate_each(
    path: Path,
    *,
    examples: int,
    fid: int | None,
    iwae: int,
    factors: str | None,
    thorough: bool,
    device: str,
    data_root: Path | None,
    display: Display,
    selection: Selection = Selection(),  # noqa: B008  # frozen
) -> Iterator[tuple[RunFolder, dict[str, Any]]]:
    """Evaluate the runs at a path one by one.

    Args:
        path: Run folder, or folder of runs.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID.
        iwae: Importance samples per example.
        factors: Table of factors.
        thorough: Measure as many examples on a CPU as on a GPU.
        device: Name of the device.
        data_root: Data folder that is searched first.
        display: Where to show progress and notes.
        selection: Metrics to measure.

    Yields:
        Each run folder with its metrics.
    """
    if path.suffix == ".npz" and path.is_file():
        score = shell_command("score", path)
        raise UserError(f"{path} is not a run folder; score the codes in a file with: {score}")
    chosen, folders = pick_device(device), find_runs(path)
    started = [folder for folder in folders if latest_step(folder.checkpoints) is not None]
    agreement = _measure_agreement(started, chosen, data_root, selection)
    for folder in started or folders:
        try:
            # Without its table of factors, a run would lose the scores it has.
            table = factors or previous_factors(folder)
            run = load_for_evaluation(folder, chosen, data_root, table)
        except FactorsError as error:
            raise UserError(
                f"{folder.path}: {error}; give another table with --factors. To evaluate without "
                f"factors and lose the scores it has, delete {folder.metrics_file}"
            ) from None
        run = replace(run, thorough=thorough or run.thorough)
        metrics = evaluate_with_progress(
            run,
            examples,
            fid,
            display,
            iwae=iwae,
            selection=selection,
            further=agreement.get(folder.path),
        )
        draw_information(folder, metrics)
        yield folder, metrics
    if len(started) < len(folders):
        others = ", ".join(str(folder.path) for folder in folders if folder not in started)
        display.note(f"skipped, because they have no checkpoint yet: {others}")


def _measure_agreement(
    folders: Sequence[RunFolder], device: torch.device, root: Path | None, selection: Selection
) -> dict[Path, dict[str, Any]]:
    """Return the entry `udr` of each run by its folder; none if UDR is not selected."""
    if not selection.wants("udr") or (selection.may_skip and len(folders) < 2):
        return {}
    entries = compare_runs([load_for_evaluation(folder, device, root) for folder in folders])
    return {f.path: {"udr": entry} for f, entry in zip(folders, entries, strict=True)}


def evaluate_run(
    folder: RunFolder,
    device: torch.device,
    root: Path | None,
    display: Display,
    *,
    examples: int = DEFAULT_EXAMPLES,
    fid: int | None = None,
    iwae: bool = True,
    position: str = "",
) -> None:
    """Evaluate a run if needed, and save its figures.

    Args:
        folder: Run folder.
        device: Device of the model.
        root: Data folder that is searched first.
        display: Where to show progress and notes.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID.
        iwae: Require the importance-weighted bound in reused metrics.
        position: Position of the run among several, such as `1 of 3`.
    """
    result: CachedEvaluation = evaluate_cached(
        folder,
        device,
        root,
        display,
        examples=examples,
        fid=fid,
        iwae=iwae,
        position=position,
    )
    run = result.run
    if run is None:
        return
    draw_information(folder, result.metrics)
    if holds_images(run.examples):  # sentences are in metrics.json
        save_pixels(make_sample_grid(run), folder.figures / "samples.png", step=run.step)
        save_reconstructions(run, folder.figures / "reconstruction.png")
        save_figure(plot_traversal(run), folder.figures / "traversal.png", step=run.step)


def evaluate_pending(
    folders: Sequence[RunFolder],
    device: torch.device,
    root: Path | None,
    display: Display,
    *,
    fid: int | None = None,
    iwae: bool = True,
) -> None:
    """Evaluate the runs whose newest checkpoint has not been evaluated completely.

    Args:
        folders: Run folders.
        device: Device of the models.
        root: Data folder that is searched first.
        display: Where to show progress and notes.
        fid: Number of images for FID and KID.
        iwae: Require the importance-weighted bound.

    Raises:
        Interrupted: After Ctrl-C. Finished evaluations are kept.
    """
    pending = select_pending(list(folders), device, fid, has_figures, iwae=iwae)
    for done, folder in enumerate(pending):
        position = f"{done + 1} of {len(pending)}"
        try:
            evaluate_run(folder, device, root, display, fid=fid, iwae=iwae, position=position)
        except KeyboardInterrupt:
            line = (
                f"stopped while evaluating, {done} of {len(pending)} done; "
                "resume with: the same command"
            )
            display.status(line)
            raise Interrupted(line) from None


def draw_information(folder: RunFolder, metrics: Mapping[str, Any]) -> None:
    """Save the mutual information figure, or delete that of an earlier evaluation."""
    path = folder.figures / "information.png"
    if (figure := plot_mutual_information(metrics)) is not None:
        save_figure(figure, path)
    else:
        path.unlink(missing_ok=True)


def has_figures(folder: RunFolder, step: int) -> bool:
    """Return True if the figures of this step exist. The traversal is drawn last."""
    images = isinstance(folder.experiment().data, ImageSettings)
    return not images or read_step(folder.figures / "traversal.png") == step
