"""Every metric that applies to a run, into its `metrics.json`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from controlvae.errors import UserError
from controlvae.lab.config import describe_likelihood
from controlvae.lab.data.dataset import ImageDataset, stream_key
from controlvae.lab.engines.cpu import keep_freed_memory
from controlvae.lab.evaluation.dialog import dialog_metrics
from controlvae.lab.evaluation.disentanglement import disentanglement
from controlvae.lab.evaluation.images import image_metrics
from controlvae.lab.evaluation.iwae import IMPORTANCE_SAMPLES
from controlvae.lab.evaluation.text import bound_perplexities, text_metrics
from controlvae.lab.io import finite, write_json
from controlvae.lab.models.dataset_elbo import measure_elbo
from controlvae.lab.runs.folder import RunFolder, look_up
from controlvae.lab.runs.loaded import (
    LoadedRun,
    best_by_validation,
    on_test_examples,
    pixel_variance,
    some_examples,
)
from controlvae.metrics import active_units, mutual_information, step_response

MIXED = 4_096  # examples the mutual information is worked out from: their pairs all count
_ENOUGH, _MOST_DRAWS = 5_000, 20  # samples of z in all, and of one example, that make chance small


def evaluate(
    run: LoadedRun,
    examples: int,
    progress: Callable[[float], None] = lambda share: None,
    *,
    importance_samples: int = IMPORTANCE_SAMPLES,
    fid_pictures: int | None = None,
) -> dict[str, Any]:
    """Measures a run on so many examples (all of them if it has fewer) and writes `metrics.json`.

    Figures are those of the test part where the data has one, with those of the training part beside them. What is
    measured against ground-truth factors is of the part it was trained on, the larger one, and says so.
    """
    if run.device.type == "cpu":
        keep_freed_memory()  # an encoder in half the time
    try:
        tested, missing = on_test_examples(run), {}
    except UserError as error:  # what a run was trained on is here, its test part is not
        tested, missing = None, {"test": {"skipped": str(error)}}
    shown = tested or run
    bound = _bound(shown, examples, lambda share: progress(0.2 * share))
    seen = lambda share: progress(0.2 + 0.4 * share)  # noqa: E731
    pictures = image_metrics(
        shown, bound["elbo"], importance_samples, fid_pictures, seen, examples=examples
    )
    metrics = {
        "step": run.step,
        "device": run.device.type,
        "thorough": run.thorough,  # on more examples, with more draws
        "units": "nats per example",
        "data": shown.examples.source,
        **bound,
        **({"train": _of_training(run, examples)} if tested else missing),
        "step_response": tracking(run.folder),
        **pictures,
        **disentanglement(run, lambda share: progress(0.6 + 0.4 * share)),
        **text_metrics(shown, bound, importance_samples),
        **dialog_metrics(shown, bound, importance_samples),
    }
    metrics |= _best(shown, examples, importance_samples, fid_pictures, bound, pictures)
    metrics = finite(metrics)
    write_json(run.folder.metrics_file, metrics)
    return metrics


def _best(
    run: LoadedRun,
    examples: int,
    importance_samples: int,
    fid_pictures: int | None,
    bound: dict[str, Any],
    pictures: dict[str, Any],
) -> dict[str, Any]:
    """The same of the weights that did best on validation examples, where they were kept.

    `bound` and `pictures` are those of the last weights, which may be the best ones: they are not measured twice.
    """
    try:
        best = best_by_validation(run)
    except UserError as error:  # the last weights are good all the same
        return {"best": {"skipped": str(error)}}
    if best is None:
        return {}
    if best.step != run.step:
        bound = _bound(best, examples, lambda share: None)
        pictures = image_metrics(
            best, bound["elbo"], importance_samples, fid_pictures, examples=examples
        )
    perplexities = (
        {}
        if isinstance(best.examples, ImageDataset)
        else bound_perplexities(best, bound, importance_samples)
    )
    chosen = {"step": best.step, "chosen": "by the ELBO on validation examples"}
    return {"best": {**chosen, **bound, **pictures, **perplexities}}


def suffices(
    metrics: Mapping[str, Any] | None,
    step: int,
    examples: int,
    fid_pictures: int | None,
    device: torch.device,
    *,
    iwae: bool = True,
) -> bool:
    """Whether metrics are of this step and no poorer than what `evaluate` would measure now.

    Without `iwae` they may lack that bound, which nobody is going to look at.
    """
    if metrics is None or metrics["step"] != step or "examples" not in metrics:
        return False
    available = metrics.get("available", metrics["examples"])
    enough = metrics["examples"] >= min(examples, available) and ("iwae" in metrics or not iwae)
    wanted = min(fid_pictures or 0, available) if "likeness" in metrics else 0  # of pictures alone
    coarser = device.type == "cuda" and not metrics.get(
        "thorough", metrics.get("device", "cuda") == "cuda"
    )
    return enough and (look_up(metrics, "fid.pictures") or 0) >= wanted and not coarser


def _of_training(run: LoadedRun, examples: int) -> dict[str, Any]:
    bound = _bound(run, examples, lambda share: None)
    return {name: bound[name] for name in ("examples", "split", "elbo", "reconstruction", "kl")}


def _bound(run: LoadedRun, examples: int, progress: Callable[[float], None]) -> dict[str, Any]:
    """ELBO and its parts, with one sample of z per example, or more where examples are few."""
    count = min(examples, run.available)
    noise = torch.Generator().manual_seed(stream_key(0, 11))
    chosen = some_examples(run, count)
    if len(chosen) < 2:
        raise UserError(
            f"{run.folder.path} cannot be measured on one example ({run.examples.split}); two are enough"
        )
    draws = max(1, min(_MOST_DRAWS, _ENOUGH // len(chosen)))
    # In their random order: the first of them are those that other metrics take.
    batches = (run.examples.batch(few) for few in chosen.split(run.examples.eval_batch_size))
    told = lambda done: progress(done / count)  # noqa: E731
    bound = measure_elbo(
        run.model, run.experiment.objective.likelihood, batches, noise, told, draws=draws
    )
    return {
        "examples": len(chosen),
        "draws": draws,  # of z, for each example
        "available": run.available,
        "split": run.examples.split,
        "likelihood": describe_likelihood(run.experiment.objective.likelihood),
        **pixel_variance(run),
        "elbo": bound.elbo,
        "reconstruction": bound.reconstruction,
        "kl": bound.kl,
        "kl_per_latent": bound.kl_per_latent.tolist(),
        "active_units": active_units(bound.means),
        "mutual_information": mutual_information(
            bound.means[:MIXED], bound.log_variances[:MIXED]
        )._asdict(),
    }


def tracking(folder: RunFolder) -> dict[str, Any] | None:
    """The step response of what the controller holds; None for an open-loop run, which has no set point."""
    records = [
        record for record in folder.records() if record["target"]
    ]  # distances are shares of the set point
    if not records:
        return None
    column = lambda name: [record[name] for record in records]  # noqa: E731
    held = folder.experiment().controlled_quantity
    # The first line averages many steps and may be past the set point already; an untrained model starts below it in
    # what its weight multiplies, and above it in the reconstruction.
    start = None if held == "reconstruction" else 0.0
    response = asdict(
        step_response(column(held), column("target"), steps=column("step"), start=start)
    )
    return {**response, "of": f"{held} on the training batches, as shares of the set point"}
