"""Metrics of a run's pictures: a tighter bound, likeness of reconstructions, FID and KID. Each says what it used."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Gaussian
from controlvae.lab.data.dataset import BinaryImages, ImageDataset
from controlvae.lab.evaluation.inception_weights import NoWeights, load_inception
from controlvae.lab.evaluation.iwae import importance_weighted
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decoded,
    pixel_variance,
    prior_codes,
    some_examples,
)
from controlvae.metrics import bits_per_dimension, dequantised, fid, psnr, ssim
from controlvae.metrics.image import kid
from controlvae.metrics.image.inception import RESIZE, Inception

FID_PICTURES = 10_000
_BATCH = 100
_LIKENESS_EXAMPLES = 10_000, 1_000  # on a GPU, and elsewhere; the result says how many it used

Progress = Callable[[float], None]


def image_metrics(
    run: LoadedRun,
    elbo: float,
    samples: int,
    pictures: int | None,
    progress: Progress = lambda share: None,
    *,
    examples: int | None = None,
) -> dict[str, Any]:
    """Of the examples `run` holds, which are the test part where there is one.

    Args:
        run: a trained run.
        elbo: of the same examples, nats.
        samples: importance samples per example; 0 leaves that bound out.
        pictures: of each set for FID and KID; 0 leaves them out, None lets the device decide.
        progress: told the share that is done.
        examples: at most so many for SSIM and PSNR; None lets the device decide.
    """
    if not isinstance(run.examples, ImageDataset):
        return {}
    network = _extractor(run, pictures)  # first: what is missing is said before time is spent
    bound = (
        importance_weighted(run, samples, lambda share: progress(0.3 * share)) if samples else None
    )
    results = {
        **({"iwae": bound} if bound else {}),
        "bits_per_dimension": _bits(run, elbo, bound),
        "likeness": _likeness(
            run, examples or run.available, lambda share: progress(0.3 + 0.2 * share)
        ),
        **_distances(run, network, pictures, lambda share: progress(0.5 + 0.5 * share)),
    }
    progress(1.0)
    return results


def _bits(run: LoadedRun, elbo: float, bound: dict[str, Any] | None) -> dict[str, Any]:
    likelihood, pixels = run.experiment.objective.likelihood, math.prod(run.examples.shape)
    match likelihood, isinstance(run.examples, BinaryImages):
        case "bernoulli", True:
            offset, how = 0.0, "of black and white pixels"
        case Gaussian(), False:
            offset = pixels * dequantised(pixel_variance(run)["pixel_variance"])
            how = "of 8-bit values at the size trained on, uniform dequantisation, its mean exact"
        case _, binary:
            names = {
                "bernoulli": "a cross-entropy of grey values",
                "squared-error": "the squared error",
            }
            kind = "a Gaussian density" if isinstance(likelihood, Gaussian) else names[likelihood]
            return {
                "skipped": f"{kind} is not a likelihood of {'black and white' if binary else '8-bit'} pictures"
            }
    tighter = (
        {"iwae": bound["bound"], "elbo_of_the_same": bound["elbo_of_the_same"]} if bound else {}
    )
    bits = {
        name: bits_per_dimension(nats + offset, pixels)
        for name, nats in {"elbo": elbo, **tighter}.items()
    }
    return {**bits, "dimensions": pixels, "how": how}


@torch.no_grad()
def _likeness(run: LoadedRun, most: int, progress: Progress) -> dict[str, Any]:
    """SSIM and PSNR of reconstructions from the posterior mean, each a mean over pictures."""
    if min(run.examples.shape[1:]) < 11:
        return {
            "skipped": f"SSIM's window is 11 x 11, pictures are {run.examples.shape[2]} x {run.examples.shape[1]}"
        }
    count = min(run.affords(*_LIKENESS_EXAMPLES), most, run.available)
    sums = torch.zeros(2, dtype=torch.float64)
    for done, (x, rebuilt) in enumerate(_rebuilt(run, count), start=1):
        # An error below half a grey level counts as that, 54 dB: one perfect picture must not make the mean infinite.
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


def _extractor(run: LoadedRun, pictures: int | None) -> Inception | str:
    """The network, or why there is none. Someone who asks for FID is told at once what it needs."""
    if pictures == 0:
        return "not asked for"
    if pictures is None and run.device.type != "cuda":
        return f"on a CPU it takes 0.2 s a picture; ask for it: --fid 1000 (a GPU takes {FID_PICTURES:,})"
    if pictures is None and isinstance(run.examples, BinaryImages):
        return "black and white pictures are far from what Inception knows; ask for it: --fid 10000"
    if run.examples.shape[0] not in (1, 3):
        return f"Inception takes 1 or 3 channels, pictures have {run.examples.shape[0]}"
    try:
        return load_inception(root=run.root).to(run.device)
    except NoWeights as error:
        if pictures is not None:
            raise
        return str(error)


@torch.no_grad()
def _distances(
    run: LoadedRun, network: Inception | str, pictures: int | None, progress: Progress
) -> dict[str, Any]:
    """FID and KID of samples from N(0, I), and of reconstructions, both against the examples."""
    if isinstance(network, str):
        earlier = None if pictures == 0 else _earlier(run)
        return earlier or {"fid": {"skipped": network}, "kid": {"skipped": network}}
    count = min(pictures or FID_PICTURES, run.available)
    if count < 2:
        return {
            "fid": {"skipped": "one picture has no spread"},
            "kid": {"skipped": "one picture has no spread"},
        }
    reference = _reference_features(run, network, count, lambda share: progress(0.3 * share))
    rebuilt, drawn = [], []
    for _, copy in _rebuilt(run, count):
        rebuilt.append(network(copy))
        progress(0.3 + 0.3 * len(rebuilt) * _BATCH / count)
    for z in prior_codes(run, count).split(_BATCH):
        drawn.append(network(decoded(run, z)))
        progress(0.6 + 0.3 * len(drawn) * _BATCH / count)
    sets = {"samples": torch.cat(drawn), "reconstructions": torch.cat(rebuilt)}
    how = {
        "pictures": count,
        "reference_pictures": count,
        "split": run.examples.split,
        "of": "samples: z from N(0, I); reconstructions: of the reference itself, from the posterior mean",
        "extractor": network.extractor,
        "resize": RESIZE,
    }
    return {
        "fid": {name: asdict(fid(reference, features)) for name, features in sets.items()} | how,
        "kid": {name: asdict(kid(reference, features)) for name, features in sets.items()} | how,
    }


_last_reference: dict[
    tuple[object, ...], Tensor
] = {}  # one entry, on the host: a table's runs share their reference


def _reference_features(
    run: LoadedRun, network: Inception, count: int, progress: Progress
) -> Tensor:
    """Features of the examples themselves: (count, 2048). Those of one run serve the next on the same pictures."""
    chosen = some_examples(run, count)
    key = (run.examples.fingerprint(), chosen.cpu().numpy().tobytes(), network.extractor)
    if key not in _last_reference:
        features = []
        for few in chosen.split(_BATCH):
            features.append(network(run.examples.batch(few)))
            progress(len(features) * _BATCH / count)
        _last_reference.clear()
        _last_reference[key] = torch.cat(features).cpu()
    return _last_reference[key].to(run.device)


def describe_fid(metrics: Mapping[str, Any]) -> str | None:
    """What is behind a run's FID and KID; None where they were not measured."""
    fid = metrics.get("fid", {})
    if "extractor" not in fid:
        return None
    estimators = f"{fid['samples']['estimator']}; {metrics['kid']['samples']['estimator']}"
    how = f"{fid['of']}. Features: {fid['extractor']}; resized {fid['resize']}"
    return f"FID and KID ({fid['split']}): {estimators}. Of {how}"


def _earlier(run: LoadedRun) -> dict[str, Any] | None:
    """What was measured before of the same weights and examples: a report on a CPU keeps what a GPU found."""
    try:
        metrics = run.folder.metrics() or {}
    except UserError:  # damaged: about to be written anew
        return None
    for earlier in (metrics, metrics.get("best", {})):  # of the last weights, and of the best ones
        if (
            earlier.get("step") == run.step
            and earlier.get("fid", {}).get("split") == run.examples.split
        ):
            return {name: earlier[name] for name in ("fid", "kid")}
    return None


def _rebuilt(run: LoadedRun, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Examples and their reconstructions from the posterior mean, a batch at a time."""
    for chosen in some_examples(run, count).split(_BATCH):
        x = run.examples.batch(chosen)
        yield x, decoded(run, run.model.encode(x).mean)
