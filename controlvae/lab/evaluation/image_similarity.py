"""Similarity of images and their reconstructions: SSIM, PSNR, MS-SSIM and LPIPS."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.runs.loaded import LoadedRun, as_pixels, decode_codes, select_examples
from controlvae.metrics import lpips, ms_ssim, psnr, ssim
from controlvae.metrics._packages import require
from controlvae.metrics.image.lpips import Network, weights_file
from controlvae.metrics.image.ms_ssim import max_scales

BATCH = 100
_EXAMPLES = 10_000, 1_000  # on a GPU and elsewhere
_NETWORK: Network = "alex"

Progress = Callable[[float], None]


def check_packages(selection: Selection) -> dict[str, str]:
    """Return why selected metrics cannot be measured, by their keys.

    Raises:
        UserError: A package or a file is missing, and the selection may not skip metrics.
    """
    checks: dict[str, Callable[[], object]] = {
        "ms_ssim": lambda: require("MS-SSIM", "torchmetrics.functional.image", "torchmetrics"),
        "lpips": lambda: (
            require("LPIPS", "torchvision", "torchmetrics torchvision"),
            require("LPIPS", "torchmetrics.image.lpip", "torchmetrics torchvision"),
            weights_file(_NETWORK),
        ),
    }
    missing = {}
    for key, check in checks.items():
        if selection.wants(key):
            try:
                check()
            except (ModuleNotFoundError, FileNotFoundError) as error:
                if not selection.may_skip:
                    raise UserError(str(error)) from None
                missing[key] = str(error)
    return missing


@torch.no_grad()
def measure_similarity(
    run: LoadedRun,
    most: int,
    selection: Selection,
    missing: dict[str, str],
    progress: Progress = lambda share: None,
) -> dict[str, Any]:
    """Compare examples with their reconstructions from the posterior mean.

    Args:
        run: Trained run over the images to measure.
        most: Maximal number of images.
        selection: Metrics to measure.
        missing: Reasons of `check_packages`.
        progress: Called with the share that is done.

    Returns:
        The selected ones of the entries `likeness`, `ms_ssim` and `lpips`.
    """
    wanted = [key for key in ("likeness", "ms_ssim", "lpips") if selection.wants(key)]
    skipped = {key: reason for key, reason in missing.items() if key in wanted}
    skipped |= {key: reason for key in wanted if (reason := _too_small(run, key))}
    measured = [key for key in wanted if key not in skipped]
    results: dict[str, Any] = {key: {"skipped": reason} for key, reason in skipped.items()}
    if not measured:
        return results
    count = min(run.example_budget(*_EXAMPLES), most, run.available)
    sums = torch.zeros(4, dtype=torch.float64)
    for done, (x, rebuilt) in enumerate(reconstructions(run, count), start=1):
        sums += torch.stack([part.sum().cpu().double() for part in _compare(x, rebuilt, measured)])
        progress(min(1.0, done * BATCH / count))
    similarity, decibels, multi_scale, distance = (sums / count).tolist()
    side = min(run.examples.shape[1:])
    values: dict[str, dict[str, Any]] = {
        "likeness": {"ssim": similarity, "psnr": decibels, "units": "PSNR in dB"},
        "ms_ssim": {"score": multi_scale},
        "lpips": {"score": distance, "network": _NETWORK},
    }
    if "ms_ssim" in measured:
        values["ms_ssim"]["scales"] = max_scales(side)
    source = {"examples": count, "split": run.examples.split, "from": "the posterior mean"}
    return results | {key: values[key] | source for key in measured}


def _compare(x: Tensor, rebuilt: Tensor, keys: list[str]) -> list[Tensor]:
    """Return SSIM, PSNR, MS-SSIM and LPIPS of each pair, zeros where one is not measured."""
    zero = torch.zeros(1)
    similar = "likeness" in keys
    # Cap at an error of half a grey level, 54 dB: a perfect image would give an infinite mean.
    decibels = psnr(x, rebuilt).clamp(max=20 * math.log10(2 * 255)) if similar else zero
    return [
        ssim(x, rebuilt) if similar else zero,
        decibels,
        ms_ssim(x, rebuilt) if "ms_ssim" in keys else zero,
        lpips(x, rebuilt, network=_NETWORK) if "lpips" in keys else zero,
    ]


def _too_small(run: LoadedRun, key: str) -> str | None:
    """Return why images of this size or number of channels have no such metric, or None."""
    channels, height, width = run.examples.shape
    size, side = f"{width} x {height}", min(height, width)
    if key == "lpips" and (side < 32 or channels not in (1, 3)):
        return f"LPIPS needs 1 or 3 channels and at least 32 x 32 pixels, got {channels} of {size}"
    if key != "lpips" and side < 11:
        name = "SSIM" if key == "likeness" else "MS-SSIM"
        return f"{name} needs images of at least 11 x 11 pixels, got {size}"
    return None


def reconstructions(run: LoadedRun, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of examples and their reconstructions from the posterior mean."""
    for chosen in select_examples(run, count).split(BATCH):
        x = run.examples.batch(chosen)
        yield as_pixels(run, x), decode_codes(run, run.vae.encode(x).mean)
