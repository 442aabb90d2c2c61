"""Evaluation with a cache: existing metrics are reused if they are at least as complete."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from controlvae.diagnostics.collapse import constant_posterior_warning
from controlvae.errors import FactorsError, UserError, shell_command
from controlvae.lab.config import CustomModel
from controlvae.lab.evaluation.evaluate import is_sufficient, measure_run
from controlvae.lab.evaluation.iwae import IMPORTANCE_SAMPLES
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, look_up, nested_value
from controlvae.lab.runs.loaded import LoadedRun, load_run, require_examples
from controlvae.lab.runs.user_code import find_task
from controlvae.lab.training.display import Display

DEFAULT_EXAMPLES = 10_000
_INCEPTION_FEATURES = 2_048


class CachedEvaluation(NamedTuple):
    """Metrics of a run, and the loaded run if its data is available."""

    run: LoadedRun | None
    metrics: dict[str, Any]


def previous_factors(folder: RunFolder) -> str | None:
    """Return the table of factors that a run was last evaluated with, or None."""
    table: str | None = nested_value(folder.metrics() or {}, "ground_truth.table")
    return table


def load_for_evaluation(
    folder: RunFolder, device: torch.device, root: Path | None, factors: str | None = None
) -> LoadedRun:
    """Load a run with the given table of factors, or with the one of its last evaluation.

    Args:
        folder: Run folder.
        device: Device of the model.
        root: Data folder that is searched first.
        factors: Table of factors.
    """
    if isinstance(folder.experiment().model, CustomModel):
        find_task(folder)  # without the user's code there is nothing to evaluate
        return load_run(folder, device=device)
    previous = previous_factors(folder) if factors is None else None
    if previous is not None and previous != getattr(folder.experiment().data, "factors", None):
        try:
            return load_run(folder, root=root, device=device, factors=previous)
        except FactorsError as error:
            warnings.warn(
                f"{folder.path}: loaded without the factors of its last evaluation: {error}",
                stacklevel=2,
            )
    return load_run(folder, root=root, device=device, factors=factors)


def evaluate_with_progress(
    run: LoadedRun,
    examples: int,
    fid: int | None,
    display: Display,
    *,
    iwae: int = IMPORTANCE_SAMPLES,
    position: str = "",
    selection: Selection = Selection(),  # noqa: B008  # frozen
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure the selected metrics that apply, and write `metrics.json`.

    Args:
        run: Loaded run.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID, or None for the default.
        display: Where to show progress and notes.
        iwae: Importance samples per example. Zero skips the bound.
        position: Position of the run among several, such as `1 of 3`.
        selection: Metrics to measure.
        further: Entries of metrics.json that were computed elsewhere.
    """
    title = f"evaluating {run.folder.path}, step {run.step:,}"
    title += f" ({position})" if position else ""
    with display.bar(title) as progress:
        metrics = measure_run(
            run,
            examples,
            progress,
            fid_images=fid,
            importance_samples=iwae,
            selection=selection,
            further=further,
        )
    absent = sorted((selection.names or frozenset()) - metrics.keys())
    if absent and not selection.may_skip:
        display.note(f"{run.folder.path}: not applicable to its data: {', '.join(absent)}")
    warning = constant_posterior_warning(metrics["kl"], metrics.get("active_units", 1))
    if warning is not None:
        display.note(f"{run.folder.path}: {warning}")
    count = look_up(metrics, "fid.pictures")
    if fid and count is not None and count < fid:
        split = metrics["fid"]["split"]
        few = ""
        if count < _INCEPTION_FEATURES:
            few = f"; FID is unreliable below {_INCEPTION_FEATURES:,}"
        display.note(f"note: FID uses {count:,} images, all that are available ({split}){few}")
    return metrics


def evaluate_cached(
    folder: RunFolder,
    device: torch.device,
    root: Path | None,
    display: Display,
    *,
    examples: int = DEFAULT_EXAMPLES,
    fid: int | None = None,
    iwae: bool = True,
    position: str = "",
) -> CachedEvaluation:
    """Evaluate a run, or reuse its metrics.

    Metrics are reused if they are at least as complete as new ones would be, or if the data is
    unavailable. A run that was evaluated thoroughly is evaluated thoroughly again.

    Args:
        folder: Run folder.
        device: Device of the model.
        root: Data folder that is searched first.
        display: Where to show progress and notes.
        examples: Number of examples to measure.
        fid: Number of images for FID and KID, or None for the default.
        iwae: Require the importance-weighted bound in reused metrics.
        position: Position of the run among several, such as `1 of 3`.
    """
    metrics = folder.metrics()
    try:
        run = load_for_evaluation(folder, device, root)
        require_examples(run)
    except UserError as error:
        if metrics is None or metrics["step"] != latest_step(folder.checkpoints):
            raise
        display.note(f"{folder.path}: reusing its metrics: {error}")
        return CachedEvaluation(None, metrics)
    if metrics is not None and metrics["step"] != run.step:
        metrics = None
    if metrics is not None and metrics.get("thorough"):
        run = replace(run, thorough=True)
    # Without their table of factors, the scores could not be measured again.
    lost_factors = previous_factors(folder) is not None and run.examples.factors is None
    if metrics is not None and (
        lost_factors or is_sufficient(metrics, run.step, examples, fid, device, iwae=iwae)
    ):
        option = [] if fid is None else ["--fid", fid]
        again = f"; measure again with: {shell_command('evaluate', folder.path, *option)}"
        display.note(f"{folder.path}: reusing its metrics{'' if lost_factors else again}")
        return CachedEvaluation(run, metrics)
    return CachedEvaluation(
        run, evaluate_with_progress(run, examples, fid, display, position=position)
    )


def select_pending(
    folders: list[RunFolder],
    device: torch.device,
    fid: int | None,
    is_drawn: Callable[[RunFolder, int], bool],
    *,
    examples: int = DEFAULT_EXAMPLES,
    iwae: bool = True,
) -> list[RunFolder]:
    """Return the runs whose newest checkpoint has not been evaluated completely.

    Args:
        folders: Run folders.
        device: Device that would be used.
        fid: Number of images for FID and KID.
        is_drawn: Returns True if the figures of a run at a step exist.
        examples: Number of examples to measure.
        iwae: Require the importance-weighted bound.
    """
    pending = []
    for folder in folders:
        step = latest_step(folder.checkpoints)
        if step is None:
            continue
        complete = is_sufficient(folder.metrics(), step, examples, fid, device, iwae=iwae)
        if not (complete and is_drawn(folder, step)):
            pending.append(folder)
    return pending
