"""Notes below the tables of a report: examples, estimators and skipped metrics."""

from collections.abc import Mapping
from typing import Any

from controlvae.lab.evaluation.feature_distances import describe_fid, describe_further
from controlvae.lab.evaluation.registry import SCORE_METRICS
from controlvae.lab.runs.loaded import format_count


def number_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Describe the examples and the likelihood behind the main metrics of a run."""
    draws = metrics.get("draws", 1)  # older metrics files used one
    examples = format_count(metrics["examples"], metrics["split"])
    return [
        f"Measured on {examples}, {draws} sample{'s' if draws > 1 else ''} of z for each.",
        f"Reconstruction: {metrics['likelihood']}.",
    ]


def score_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Describe how the disentanglement scores of a run were measured, or why they were skipped."""
    notes, skipped = [], dict[str, list[str]]()
    if truth := metrics.get("ground_truth"):  # older metrics files lack it
        factors = ", ".join(truth["names"]) or "no factor"
        notes.append(
            f"Scores of {format_count(truth['examples'], truth['split'])}, over {factors}."
        )
        if truth["unordered"]:
            names = ", ".join(truth["unordered"])
            notes.append(f"Unordered, so not in the sampled MIG and the continuous SAP: {names}.")
        if truth["constant"]:
            notes.append(f"Skipped because they are constant: {', '.join(truth['constant'])}.")
    for metric in SCORE_METRICS:
        score = metrics.get(metric.path.partition(".")[0], {})
        notes += [f"{score['estimator']}."] if "estimator" in score else []
        if "skipped" in score:
            skipped.setdefault(score["skipped"], []).append(metric.name)
    reasons = [f"No {'; '.join(heads)}: {reason}." for reason, heads in skipped.items()]
    return [*dict.fromkeys(notes), *reasons]


def image_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Describe how the image metrics of a run were measured, or why they were skipped."""
    notes = [f"ELBO: {format_count(metrics['examples'], metrics['split'])}."]
    if train := metrics.get("train"):
        notes.append(f"Training set: {format_count(train['examples'], train['split'])}.")
    if best := metrics.get("best"):
        notes.append(f"Best by validation: {_describe_best(best, metrics['step'])}.")
    if bound := metrics.get("iwae"):
        notes.append(f"{bound['estimator']}: {format_count(bound['examples'], bound['split'])}.")
    if "how" in metrics.get("bits_per_dimension", {}):
        notes.append(f"Bits per dimension: by the ELBO, {metrics['bits_per_dimension']['how']}.")
    likeness = metrics["likeness"]
    if "ssim" in likeness:
        source = f"{likeness['from']} ({likeness['split']})"
        notes.append(f"SSIM and PSNR: {likeness['examples']:,} reconstructions from {source}.")
    fid = describe_fid(metrics)
    notes += [] if fid is None else [f"{fid}."]
    notes += describe_further(metrics)
    if "scales" in (scaled := metrics.get("ms_ssim", {})):
        notes.append(f"MS-SSIM: {scaled['scales']} scales, of five in the paper.")
    if "network" in (perceptual := metrics.get("lpips", {})):
        notes.append(f"LPIPS: network {perceptual['network']}.")
    for name, key in _SKIPPABLE.items():
        if reason := metrics.get(key, {}).get("skipped"):
            notes.append(f"No {name}: {reason}.")
    return notes


def _describe_best(best: Mapping[str, Any], step: int) -> str:
    if "skipped" in best:
        return str(best["skipped"])
    if best.get("step", step) == step:
        return "the weights of the last step"
    return f"the weights of step {best['step']:,}, which had the best ELBO on the validation split"


_SKIPPABLE = {
    "bits per dimension": "bits_per_dimension",
    "SSIM and PSNR": "likeness",
    "FID and KID": "fid",
    "MS-SSIM": "ms_ssim",
    "LPIPS": "lpips",
    "FD-DINOv2": "fd_dinov2",
}
