"""Metrics of a run over images: IWAE, bits per dimension, and those of the files next to this."""

import math
from collections.abc import Callable
from typing import Any

from controlvae.lab.config import Gaussian
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.data.dataset import BinaryImages, holds_images
from controlvae.lab.evaluation.feature_distances import load_extractors, measure_distances
from controlvae.lab.evaluation.image_similarity import check_packages, measure_similarity
from controlvae.lab.evaluation.iwae import importance_weighted_bound
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.runs.loaded import LoadedRun, pixel_variance, shows_codes
from controlvae.metrics import bits_per_dimension, dequantization_offset

Progress = Callable[[float], None]


def image_metrics(
    run: LoadedRun,
    elbo: float,
    samples: int,
    fid_images: int | None,
    progress: Progress = lambda share: None,
    *,
    examples: int | None = None,
    selection: Selection = Selection(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    """Measure likelihood bounds, reconstructions and samples of a run over images.

    Args:
        run: Trained run over the images to measure.
        elbo: ELBO of the same images, in nats.
        samples: Importance samples per example; 0 skips the IWAE bound.
        fid_images: Images per set for distances of features; 0 skips FID and KID, None leaves it
            to the device.
        progress: Called with the share that is done.
        examples: Maximal number of images for similarities; None leaves it to the device.
        selection: Metrics to measure.

    Returns:
        Entries of metrics.json; empty for a run that is not over images.
    """
    if not holds_images(run.examples) or not shows_codes(run):
        return {}
    # Load networks first, so that missing packages and weights are reported before any work.
    extractors, missing = load_extractors(run, fid_images, selection), check_packages(selection)
    bound = None
    if samples and selection.wants("iwae", "bits_per_dimension"):
        bound = importance_weighted_bound(run, samples, lambda share: progress(0.3 * share))
    results: dict[str, Any] = {"iwae": bound} if bound else {}
    if selection.wants("bits_per_dimension"):
        results["bits_per_dimension"] = _bits_per_dimension(run, elbo, bound)
    results |= measure_similarity(
        run,
        examples or run.available,
        selection,
        missing,
        lambda share: progress(0.3 + 0.2 * share),
    )
    results |= measure_distances(
        run, extractors, fid_images, selection, lambda share: progress(0.5 + 0.5 * share)
    )
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
