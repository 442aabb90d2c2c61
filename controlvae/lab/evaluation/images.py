"""Metrics of a run over images: IWAE, bits per dimension, SSIM, PSNR, FID and KID."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Gaussian
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.data.dataset import BinaryImages, holds_images
from controlvae.lab.evaluation.inception_weights import MissingWeightsError, load_inception
from controlvae.lab.evaluation.iwae import importance_weighted_bound
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_pixels,
    decode_codes,
    pixel_variance,
    prior_codes,
    select_examples,
    shows_codes,
)
from controlvae.metrics import bits_per_dimension, dequantization_offset, fid, psnr, ssim
from controlvae.metrics.image import kid
from controlvae.metrics.image.inception import RESIZE, Inception

FID_IMAGES = 10_000
_BATCH = 100
_QUALITY_EXAMPLES = 10_000, 1_000  # for SSIM and PSNR, on a GPU and elsewhere

Progress = Callable[[float], None]


def image_metrics(
    run: LoadedRun,
    elbo: float,
    samples: int,
    fid_images: int | None,
    progress: Progress = lambda share: None,
    *,
    examples: int | None = None,
) -> dict[str, Any]:
    """Measure likelihood bounds, reconstructions and samples of a run over images.

    Args:
        run: Trained run over the images to measure.
        elbo: ELBO of the same images, in nats.
        samples: Importance samples per example; 0 skips the IWAE bound.
        fid_images: Images per set for FID and KID; 0 skips them, None leaves it to the device.
        progress: Called with the share that is done.
        examples: Maximal number of images for SSIM and PSNR; None leaves it to the device.

    Returns:
        Entries of metrics.json; empty for a run that is not over images.
    """
    if not holds_images(run.examples) or not shows_codes(run):
        return {}
    # Load the extractor first, so that missing weights are reported before any work is done.
    network = _load_extractor(run, fid_images)
    bound = (
        importance_weighted_bound(run, samples, lambda share: progress(0.3 * share))
        if samples
        else None
    )
    results = {
        **({"iwae": bound} if bound else {}),
        "bits_per_dimension": _bits_per_dimension(run, elbo, bound),
        "likeness": _reconstruction_quality(
            run, examples or run.available, lambda share: progress(0.3 + 0.2 * share)
        ),
        **_fid_and_kid(run, network, fid_images, lambda share: progress(0.5 + 0.5 * share)),
    }
    progress(1.0)
    return results


def custom_metrics(
    run: LoadedRun, samples: int, progress: Progress = lambda share: None
) -> dict[str, Any]:
    """Measure the IWAE bound of a user-supplied model over data other than images.

    Args:
        run: Trained run over the data to measure.
        samples: Importance samples per example; 0 skips the bound.
        progress: Called with the share that is done.
    """
    if not samples or not shows_codes(run):
        return {}
    return {"iwae": importance_weighted_bound(run, samples, progress)}


def _bits_per_dimension(
    run: LoadedRun, elbo: float, bound: dict[str, Any] | None
) -> dict[str, Any]:
    likelihood, pixels = run.experiment.objective.likelihood, math.prod(run.examples.shape)
    if isinstance(run.examples, UserExamples):
        return {"skipped": "the values of user-supplied images are not known to be 8-bit"}
    match likelihood, isinstance(run.examples, BinaryImages):
        case "bernoulli", True:
            offset, how = 0.0, "of black and white pixels"
        case Gaussian(), False:
            offset = pixels * dequantization_offset(pixel_variance(run)["pixel_variance"])
            how = "of 8-bit values at the size trained on, uniform dequantisation, its mean exact"
        case _, binary:
            names = {
                "bernoulli": "a cross-entropy of grey values",
                "squared-error": "the squared error",
            }
            kind = "a Gaussian density" if isinstance(likelihood, Gaussian) else names[likelihood]
            images = "black and white images" if binary else "8-bit images"
            return {"skipped": f"{kind} is not a likelihood of {images}"}
    tighter = (
        {"iwae": bound["bound"], "elbo_of_the_same": bound["elbo_of_the_same"]} if bound else {}
    )
    bits = {
        name: bits_per_dimension(nats + offset, pixels)
        for name, nats in {"elbo": elbo, **tighter}.items()
    }
    return {**bits, "dimensions": pixels, "how": how}


@torch.no_grad()
def _reconstruction_quality(run: LoadedRun, most: int, progress: Progress) -> dict[str, Any]:
    """Return mean SSIM and PSNR of reconstructions from the posterior mean."""
    if min(run.examples.shape[1:]) < 11:
        size = f"{run.examples.shape[2]} x {run.examples.shape[1]}"
        return {"skipped": f"SSIM needs images of at least 11 x 11 pixels, got {size}"}
    count = min(run.example_budget(*_QUALITY_EXAMPLES), most, run.available)
    sums = torch.zeros(2, dtype=torch.float64)
    for done, (x, rebuilt) in enumerate(_reconstructions(run, count), start=1):
        # Cap at an error of half a grey level, 54 dB: a perfect image would give an infinite mean.
        decibels = psnr(x, rebuilt).clamp(max=20 * math.log10(2 * 255))
        sums += torch.stack([ssim(x, rebuilt).sum(), decibels.sum()]).cpu().double()
        progress(min(1.0, done * _BATCH / count))
    return {
        "ssim": sums[0].item() / count,
        "psnr": sums[1].item() / count,  # dB
        "units": "PSNR in dB",
        "examples": count,
        "split": run.examples.split,
        "from": "the posterior mean",
    }


def _load_extractor(run: LoadedRun, fid_images: int | None) -> Inception | str:
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


@torch.no_grad()
def _fid_and_kid(
    run: LoadedRun, network: Inception | str, fid_images: int | None, progress: Progress
) -> dict[str, Any]:
    """Return FID and KID of prior samples and of reconstructions against the examples."""
    if isinstance(network, str):
        earlier = None if fid_images == 0 else _stored_fid_and_kid(run)
        return earlier or {"fid": {"skipped": network}, "kid": {"skipped": network}}
    count = min(fid_images or FID_IMAGES, run.available)
    if count < 2:
        reason = f"need at least 2 images, got {count}"
        return {"fid": {"skipped": reason}, "kid": {"skipped": reason}}
    reference = _reference_features(run, network, count, lambda share: progress(0.3 * share))
    rebuilt, drawn = [], []
    for _, copy in _reconstructions(run, count):
        rebuilt.append(network(copy))
        progress(0.3 + 0.3 * len(rebuilt) * _BATCH / count)
    for z in prior_codes(run, count).split(_BATCH):
        drawn.append(network(decode_codes(run, z)))
        progress(0.6 + 0.3 * len(drawn) * _BATCH / count)
    sets = {"samples": torch.cat(drawn), "reconstructions": torch.cat(rebuilt)}
    how = {
        "pictures": count,
        "reference_pictures": count,
        "split": run.examples.split,
        "of": "samples: z from N(0, I); reconstructions: of the reference itself, from the "
        "posterior mean",
        "extractor": network.extractor,
        "resize": RESIZE,
    }
    return {
        "fid": {name: asdict(fid(reference, features)) for name, features in sets.items()} | how,
        "kid": {name: asdict(kid(reference, features)) for name, features in sets.items()} | how,
    }


# One entry on the host, because the runs of a table share their reference images.
_last_reference: dict[tuple[object, ...], Tensor] = {}


def _reference_features(
    run: LoadedRun, network: Inception, count: int, progress: Progress
) -> Tensor:
    """Return features of the examples, (count, 2048), cached for runs on the same images."""
    chosen = select_examples(run, count)
    key = (run.examples.fingerprint(), chosen.cpu().numpy().tobytes(), network.extractor)
    if key not in _last_reference:
        features = []
        for few in chosen.split(_BATCH):
            features.append(network(as_pixels(run, run.examples.batch(few))))
            progress(len(features) * _BATCH / count)
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


def _stored_fid_and_kid(run: LoadedRun) -> dict[str, Any] | None:
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
            and earlier.get("fid", {}).get("split") == run.examples.split
        ):
            return {name: earlier[name] for name in ("fid", "kid")}
    return None


def _reconstructions(run: LoadedRun, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of examples and their reconstructions from the posterior mean."""
    for chosen in select_examples(run, count).split(_BATCH):
        x = run.examples.batch(chosen)
        yield as_pixels(run, x), decode_codes(run, run.vae.encode(x).mean)
