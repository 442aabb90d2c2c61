"""Evaluation of a run: computes every metric that applies and writes `metrics.json`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from controlvae.errors import UserError
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.cpu import keep_freed_memory
from controlvae.lab.evaluation.elbo import elbo_metrics
from controlvae.lab.evaluation.images import image_metrics
from controlvae.lab.evaluation.iwae import IMPORTANCE_SAMPLES
from controlvae.lab.evaluation.metric import OPTIONAL, Evaluation, Selection
from controlvae.lab.evaluation.registry import GROUPS
from controlvae.lab.evaluation.text import bound_perplexities
from controlvae.lab.io import finite, write_json
from controlvae.lab.runs.folder import look_up
from controlvae.lab.runs.loaded import LoadedRun, on_test_examples, with_best_weights


def measure_run(
    run: LoadedRun,
    examples: int,
    progress: Callable[[float], None] = lambda share: None,
    *,
    importance_samples: int = IMPORTANCE_SAMPLES,
    fid_images: int | None = None,
    selection: Selection = Selection(),  # noqa: B008  # frozen
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute the selected metrics that apply to a run and write `metrics.json`.

    Metrics are measured on the test set where the data has one. The ELBO of the training set is
    stored under `train`. Disentanglement scores use the training set, because it is larger.

    Args:
        run: Trained run.
        examples: Number of examples; all of them if there are fewer.
        progress: Called with the share that is done.
        importance_samples: Importance samples per example; 0 skips the IWAE bound.
        fid_images: Images per set for FID and KID; 0 skips them, None leaves it to the device.
        selection: Metrics to measure. The ELBO is always measured. Other results for the same
            weights stay in the file, if they are optional or metrics were selected by name.
        further: Entries to add that were computed elsewhere.

    Returns:
        The contents of metrics.json.
    """
    if run.device.type == "cpu":
        keep_freed_memory()  # halves the time of an encoder
    try:
        test_run, missing = on_test_examples(run), {}
    except UserError as error:  # the training set is available, the test set is not
        test_run, missing = None, {"test": {"skipped": str(error)}}
    earlier = _earlier_results(run, selection)
    evaluation = Evaluation(
        run, test_run or run, examples, importance_samples, fid_images, selection
    )
    metrics = {
        "step": run.step,
        "device": run.device.type,
        "thorough": run.thorough,  # more examples and more draws
        "units": "nats per example",
        "data": evaluation.measured.examples.source,
        **_compute_groups(evaluation, missing, progress),
        **(further or {}),
    }
    best = _measure_best(evaluation) if selection.names is None else {}
    metrics = finite({**earlier, **metrics, **best})
    write_json(run.folder.metrics_file, metrics)
    return metrics


def _earlier_results(run: LoadedRun, selection: Selection) -> dict[str, Any]:
    """Return the results for the same weights that stay in the file."""
    try:
        stored = run.folder.metrics() or {}
    except UserError:  # the file is corrupt and about to be replaced
        return {}
    if stored.get("step") != run.step:
        return {}
    return {
        key: value
        for key, value in stored.items()
        if key in OPTIONAL or selection.names is not None
    }


def _compute_groups(
    evaluation: Evaluation, missing: dict[str, Any], progress: Callable[[float], None]
) -> dict[str, Any]:
    """Compute all groups that apply. `missing` is the note on a test set that cannot be read."""
    results = evaluation.results
    for group in GROUPS:
        if group.keys and not evaluation.selection.wants(*group.keys):
            continue
        if group.applies(evaluation):
            start, end = group.progress
            scaled = lambda share, a=start, b=end: progress(a + (b - a) * share)  # noqa: E731
            results[group.name] = group.compute(replace(evaluation, progress=scaled))
        elif group.name == "training set":
            results[group.name] = missing
    return {key: value for entries in results.values() for key, value in entries.items()}


def _measure_best(evaluation: Evaluation) -> dict[str, Any]:
    """Measure the weights that were best on validation examples, if they were saved.

    The last weights may be the best ones; then their results are reused.
    """
    run, results = evaluation.measured, evaluation.results
    try:
        best = with_best_weights(run)
    except UserError as error:  # the last weights are measured in any case
        return {"best": {"skipped": str(error)}}
    if best is None:
        return {}
    bound, images = results["elbo"], results.get("images", {})
    if best.step != run.step:
        bound = elbo_metrics(best, evaluation.examples)
        images = image_metrics(
            best,
            bound["elbo"],
            evaluation.importance_samples,
            evaluation.fid_images,
            examples=evaluation.examples,
        )
    perplexities = (
        bound_perplexities(best, bound, evaluation.importance_samples)
        if isinstance(best.examples, SentenceDataset | DialogDataset)
        else {}
    )
    chosen = {"step": best.step, "chosen": "by the ELBO on validation examples"}
    return {"best": {**chosen, **bound, **images, **perplexities}}


def is_sufficient(
    metrics: Mapping[str, Any] | None,
    step: int,
    examples: int,
    fid_images: int | None,
    device: torch.device,
    *,
    iwae: bool = True,
) -> bool:
    """Return whether stored metrics are at least as complete as what `evaluate` would measure now.

    Args:
        metrics: Contents of metrics.json, or None if there is none.
        step: Step of the newest checkpoint.
        examples: Number of examples that `evaluate` would use.
        fid_images: Images per set for FID that `evaluate` would use.
        device: Device that `evaluate` would run on.
        iwae: Require the IWAE bound.
    """
    if metrics is None or metrics["step"] != step or "examples" not in metrics:
        return False
    available = metrics.get("available", metrics["examples"])
    enough = metrics["examples"] >= min(examples, available) and ("iwae" in metrics or not iwae)
    # Only image models have FID.
    required = min(fid_images or 0, available) if "likeness" in metrics else 0
    thorough = metrics.get("thorough", metrics.get("device", "cuda") == "cuda")
    coarser = device.type == "cuda" and not thorough
    return enough and (look_up(metrics, "fid.pictures") or 0) >= required and not coarser
