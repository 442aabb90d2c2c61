"""Measurements of one run of `fresh_seeds.py`: on the GPU, and of its saved posteriors."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.sprite_renderer import sprite_factor_values
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.models import build
from controlvae.lab.models.dataset_elbo import measure_elbo
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.metrics import (
    beta_vae_score,
    dci,
    factor_vae_score,
    mig_histogram,
    mig_sampled,
    modularity,
    rmig,
    sap,
)

MEASURED, SCORED, POSTERIORS = "measured.json", "scored.json", "posteriors.npz"
SNAPSHOT = "weights-{step}.safetensors"
SAVED_POSTERIORS = 20_000  # images
ELBO_IMAGES = 10_000
HISTOGRAM_IMAGES = 10_000  # as in disentanglement_lib
FACTORS = ("shape", "scale", "orientation", "x", "y")


@torch.no_grad()
def measure_run(folder: RunFolder, examples: Any, device: torch.device, images: int) -> None:
    """Measure one run on the device and save its measurements and some posteriors.

    Every tenth seed is also measured on all images.

    Args:
        folder: Run with a checkpoint.
        examples: Images of 2D Shapes on the device.
        device: Device to compute on.
        images: Number of images of MIG and RMIG.
    """
    experiment = folder.experiment()
    saved, _ = checkpoint.load_latest(folder.checkpoints)
    if saved is None:
        raise ValueError(f"expected a checkpoint in {folder.checkpoints}, found none")
    counts = {"": min(images, len(examples))}
    if experiment.training.seed % 10 == 0 and 50_000 < images < len(examples):
        counts["_all"] = len(examples)
    weights = strip_prefix(saved.tensors, "model.")
    measured, arrays = measure_weights(experiment, weights, examples, device, counts)
    write_atomically(folder.path / POSTERIORS, lambda file: np.savez(file, **arrays))
    write_json(folder.path / MEASURED, {"step": saved.step, **measured})
    name = f"{folder.path.parent.name} {folder.path.name}"
    print(f"{name}: MIG {measured['mig']['score']:.4f}, {measured['seconds']:.1f} s")


@torch.no_grad()
def measure_snapshots(folder: RunFolder, examples: Any, device: torch.device, images: int) -> None:
    """Measure the weights that a run saved at earlier steps, each once.

    Args:
        folder: Run whose snapshots are measured.
        examples: Images of 2D Shapes on the device.
        device: Device to compute on.
        images: Number of images of MIG and RMIG.
    """
    for path in sorted(folder.path.glob(SNAPSHOT.format(step="*"))):
        step = int(path.stem.removeprefix("weights-"))
        output = path.with_name(f"measured-{step}.json")
        if not output.exists():
            weights = safetensors.torch.load_file(path)
            counts = {"": min(images, len(examples))}
            measured, _ = measure_weights(folder.experiment(), weights, examples, device, counts)
            write_json(output, {"step": step, **measured})


def save_snapshot(folder: RunFolder, step: int, tensors: dict[str, Tensor]) -> None:
    """Save the weights of a run, given the state of its model."""
    payload = safetensors.torch.save(strip_prefix(tensors, "model."))
    write_atomically(folder.path / SNAPSHOT.format(step=step), lambda file: file.write(payload))


def measure_weights(
    experiment: Experiment,
    weights: dict[str, Tensor],
    examples: Any,
    device: torch.device,
    counts: dict[str, int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ELBO, MIG and RMIG of a model, and some of its posteriors.

    Args:
        experiment: Settings of the model.
        weights: Its weights.
        examples: Images of 2D Shapes on the device.
        device: Device to compute on.
        counts: Numbers of images of MIG and RMIG, by the suffix of their names in the result.
    """
    started = time.monotonic()
    model = build(experiment, examples)
    model.load_state_dict(weights)
    model = model.to(device).eval()
    # A fixed random choice of images, the same as that of `controlvae evaluate`.
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(stream_key(0, 7)))
    noise = torch.Generator().manual_seed(stream_key(0, 11))
    batches = examples.batches(order[:ELBO_IMAGES].to(device))
    elbo = measure_elbo(model, experiment.objective.likelihood, batches, noise)
    measured: dict[str, Any] = {
        "device": device.type,
        "images": counts[""],
        "elbo": elbo.elbo,
        "reconstruction": elbo.reconstruction,
        "kl": elbo.kl,
        "kl_per_latent": elbo.kl_per_latent.tolist(),
    }
    chosen = order[: max(SAVED_POSTERIORS, *counts.values())]
    classes = examples.factors[chosen.numpy()]
    posteriors = [model.encode(examples.batch(part)) for part in chosen.to(device).split(2_048)]
    means = torch.cat([posterior.mean.float() for posterior in posteriors])
    log_variances = torch.cat([posterior.log_variance.float() for posterior in posteriors])
    for suffix, count in counts.items():
        gaps = measure_gaps(classes[:count], means[:count], log_variances[:count])
        measured |= {f"{name}{suffix}": gap for name, gap in gaps.items()}
    arrays: dict[str, Any] = {
        "classes": classes[:SAVED_POSTERIORS].astype(np.uint8),
        "means": means[:SAVED_POSTERIORS].cpu().numpy(),
        "log_variances": log_variances[:SAVED_POSTERIORS].cpu().numpy(),
    }
    measured["seconds"] = time.monotonic() - started
    return measured, arrays


def measure_gaps(classes: np.ndarray, means: Tensor, log_variances: Tensor) -> dict[str, Any]:
    """Return MIG of the ordered factors and RMIG of all factors.

    Args:
        classes: Factors of the encoded images as class numbers, a row per image.
        means: Posterior means, a row per image.
        log_variances: Logarithms of the posterior variances.
    """
    mig = mig_sampled(
        means,
        log_variances,
        classes[:, 1:],  # shape is categorical
        draws=10_000 if means.is_cuda else 1_000,
        factor_names=FACTORS[1:],
    )
    robust = rmig(means, log_variances, classes, factor_names=FACTORS)
    return {"mig": asdict(mig), "rmig": asdict(robust)}


def score_run(path: Path) -> None:
    """Score the saved posterior means of a run and write `scored.json`."""
    started = time.monotonic()
    with np.load(path / POSTERIORS) as file:
        means, table = file["means"], file["classes"].astype(np.int64)
    few, few_table = means[:HISTOGRAM_IMAGES], table[:HISTOGRAM_IMAGES]
    ordered: dict[str, Any] = {"continuous": True, "factor_names": FACTORS[1:]}
    scored: dict[str, Any] = {
        "position_r2": correlate_positions(means, sprite_factor_values(table)[:, 3:]),
        "mig_histogram": asdict(mig_histogram(few, few_table, factor_names=FACTORS)),
        "dci": asdict(dci(means, table, factor_names=FACTORS)),
        "sap": asdict(sap(means, table, factor_names=FACTORS)),
        "sap_continuous": asdict(sap(means, table[:, 1:], **ordered)),
        "factor_vae_score": asdict(factor_vae_score(means, table)),
        "beta_vae_score": asdict(beta_vae_score(means, table)),
        "modularity": asdict(modularity(few, few_table)),
    }
    scored["seconds"] = time.monotonic() - started
    write_json(path / SCORED, scored)


def correlate_positions(means: np.ndarray, positions: np.ndarray) -> list[float]:
    """Return r² of each position and the latent that is correlated with it most."""
    latents = means.shape[1]
    correlation = np.corrcoef(means.T, positions.T)[:latents, latents:]
    return [float(value) for value in (correlation**2).max(0)]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, lambda file: file.write(json.dumps(content).encode()))


def write_atomically(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a temporary file and rename it, so that a partial file never has the final name."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        write(file)
    temporary.rename(path)
