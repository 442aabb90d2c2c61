"""Distances between features of images: FID, KID, FD-DINOv2, precision, recall and so on."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.evaluation.dinov2_weights import load_dinov2
from controlvae.lab.evaluation.image_similarity import BATCH, reconstructions
from controlvae.lab.evaluation.inception_weights import MissingWeightsError, load_inception
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_pixels,
    decode_codes,
    prior_codes,
    select_examples,
)
from controlvae.metrics import fid, prdc
from controlvae.metrics.image import dinov2, inception, kid
from controlvae.metrics.image.dinov2 import DINOv2
from controlvae.metrics.image.inception import Inception

FID_IMAGES = 10_000
_CPU_DINOV2_IMAGES = 1_000  # a CPU takes up to half a second per image

Progress = Callable[[float], None]
Extractor = Inception | DINOv2
#: Entries of metrics.json by extractor: the Fréchet distance, and the rest.
KEYS = {"inception": ("fid", "kid", "prdc"), "dinov2": ("fd_dinov2", "prdc_dinov2")}


def load_extractors(
    run: LoadedRun, fid_images: int | None, selection: Selection
) -> dict[str, Extractor | str]:
    """Return each selected network, or the reason to skip its metrics.

    Args:
        run: Run over the images to measure.
        fid_images: Images per set; 0 skips FID and KID, None leaves it to the device.
        selection: Metrics to measure.

    Raises:
        UserError: Weights are missing although they were requested.
    """
    extractors: dict[str, Extractor | str] = {}
    if selection.wants(*KEYS["inception"]):
        extractors["inception"] = _load_inception(run, fid_images)
    if selection.wants(*KEYS["dinov2"]):
        extractors["dinov2"] = _load_dinov2(run, selection)
    return extractors


def _load_inception(run: LoadedRun, fid_images: int | None) -> Inception | str:
    """Return the Inception network, or the reason to skip FID and KID.

    Missing weights are an error only if FID was requested.
    """
    if fid_images == 0:
        return "not requested"
    if fid_images is None and run.device.type != "cuda":
        return (
            "a CPU takes 0.2 s per image; request it with --fid 1000 "
            f"(a GPU uses {FID_IMAGES:,} images)"
        )
    if fid_images is None and isinstance(run.examples, BinaryImages):
        return "Inception was not trained on black and white images; request it with --fid 10000"
    if run.examples.shape[0] not in (1, 3):
        return f"Inception takes 1 or 3 channels, got images of {run.examples.shape[0]} channels"
    try:
        return load_inception(root=run.root).to(run.device)
    except MissingWeightsError as error:
        if fid_images is not None:
            raise
        return str(error)


def _load_dinov2(run: LoadedRun, selection: Selection) -> DINOv2 | str:
    if run.examples.shape[0] not in (1, 3):
        return f"DINOv2 takes 1 or 3 channels, got images of {run.examples.shape[0]} channels"
    given = selection.weights.get("dinov2")
    try:
        return load_dinov2(None if given is None else Path(given), run.root).to(run.device)
    except MissingWeightsError as error:
        if not selection.may_skip:
            raise
        return str(error)


@torch.no_grad()
def measure_distances(
    run: LoadedRun,
    extractors: Mapping[str, Extractor | str],
    fid_images: int | None,
    selection: Selection,
    progress: Progress = lambda share: None,
) -> dict[str, Any]:
    """Compare features of prior samples and of reconstructions with those of the examples.

    Args:
        run: Trained run over the images to measure.
        extractors: Networks or reasons, from `load_extractors`.
        fid_images: Images per set; None leaves it to the device.
        selection: Metrics to measure.
        progress: Called with the share that is done.

    Returns:
        The selected entries of metrics.json, among them `fid`, whose `reconstructions` are rFID.
    """
    results: dict[str, Any] = {}
    for number, (name, network) in enumerate(extractors.items()):
        keys = [key for key in KEYS[name] if selection.wants(key)]
        if isinstance(network, str):
            earlier = None if fid_images == 0 else _stored_distances(run, keys)
            results |= earlier or {key: {"skipped": network} for key in keys}
            continue
        default = FID_IMAGES
        if name == "dinov2" and run.device.type != "cuda":
            default = _CPU_DINOV2_IMAGES
        count = min(fid_images or default, run.available)
        scaled = lambda share, n=number: progress((n + share) / len(extractors))  # noqa: E731
        results |= _compare(run, network, count, keys, scaled)
    return results


def _compare(
    run: LoadedRun, network: Extractor, count: int, keys: list[str], progress: Progress
) -> dict[str, Any]:
    """Return the entries of one extractor."""
    if count < 2:
        return {key: {"skipped": f"need at least 2 images, got {count}"} for key in keys}
    reference = _reference_features(run, network, count, lambda share: progress(0.3 * share))
    rebuilt, drawn = [], []
    for _, copy in reconstructions(run, count):
        rebuilt.append(network(copy))
        progress(0.3 + 0.3 * len(rebuilt) * BATCH / count)
    for z in prior_codes(run, count).split(BATCH):
        drawn.append(network(decode_codes(run, z)))
        progress(0.6 + 0.3 * len(drawn) * BATCH / count)
    sets = {"samples": torch.cat(drawn), "reconstructions": torch.cat(rebuilt)}
    how = {
        "pictures": count,
        "reference_pictures": count,
        "split": run.examples.split,
        "of": "samples: z from N(0, I); reconstructions: of the reference itself, from the "
        "posterior mean",
        "extractor": network.extractor,
        "resize": dinov2.RESIZE if isinstance(network, DINOv2) else inception.RESIZE,
    }
    return {key: _distances(key, reference, sets, how) for key in keys}


def _distances(
    key: str, reference: Tensor, sets: Mapping[str, Tensor], how: dict[str, Any]
) -> dict[str, Any]:
    measures: dict[str, Callable[[Tensor, Tensor], Any]] = {"kid": kid, "prdc": prdc}
    measure = measures.get(key.partition("_")[0], fid)
    try:
        return {name: asdict(measure(reference, made)) for name, made in sets.items()} | how
    except ValueError as error:  # fewer images than neighbours
        return {"skipped": str(error)}


# One entry on the host, because the runs of a table share their reference images.
_last_reference: dict[tuple[object, ...], Tensor] = {}


def _reference_features(
    run: LoadedRun, network: Extractor, count: int, progress: Progress
) -> Tensor:
    """Return features of the examples, (count, features), cached for runs on the same images."""
    chosen = select_examples(run, count)
    key = (run.examples.fingerprint(), chosen.cpu().numpy().tobytes(), network.extractor)
    if key not in _last_reference:
        features = []
        for few in chosen.split(BATCH):
            features.append(network(as_pixels(run, run.examples.batch(few))))
            progress(len(features) * BATCH / count)
        _last_reference.clear()
        _last_reference[key] = torch.cat(features).cpu()
    return _last_reference[key].to(run.device)


def describe_fid(metrics: Mapping[str, Any]) -> str | None:
    """Return a description of how FID and KID were measured, or None if they were not."""
    fid = metrics.get("fid", {})
    if "extractor" not in fid:
        return None
    estimators = f"{fid['samples']['estimator']}; {metrics['kid']['samples']['estimator']}"
    how = f"{fid['of']}. Features: {fid['extractor']}; resized {fid['resize']}"
    return f"FID and KID ({fid['split']}): {estimators}. Of {how}"


def describe_further(metrics: Mapping[str, Any]) -> list[str]:
    """Return how FD-DINOv2 and the scores of quality and variety were measured."""
    names = {
        "prdc": "Precision, recall, density and coverage",
        "fd_dinov2": "FD-DINOv2",
        "prdc_dinov2": "Precision, recall, density and coverage, DINOv2",
    }
    notes = []
    for key, name in names.items():
        if "extractor" in (entry := metrics.get(key, {})):
            estimator = entry["samples"]["estimator"]
            notes.append(f"{name} ({entry['split']}): {estimator}. Features: {entry['extractor']}.")
    return notes


def _stored_distances(run: LoadedRun, keys: list[str]) -> dict[str, Any] | None:
    """Return earlier results for the same weights and examples.

    So an evaluation on a CPU keeps what a GPU has measured.
    """
    try:
        metrics = run.folder.metrics() or {}
    except UserError:  # the file is corrupt and about to be replaced
        return None
    for earlier in (metrics, metrics.get("best", {})):  # the last weights and the best ones
        if (
            earlier.get("step") == run.step
            and earlier.get(keys[0], {}).get("split") == run.examples.split
        ):
            return {name: earlier[name] for name in keys if name in earlier}
    return None
