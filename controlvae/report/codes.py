"""Codes that any model gave, read from a file: every disentanglement score, into a JSON file beside them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlvae.data.arrays import FAULTS
from controlvae.data.sprites import FACTOR_NAMES, IMAGE_COUNT, factor_classes
from controlvae.errors import UserError, unknown
from controlvae.experiments.folder import write_text
from controlvae.metrics import active_units
from controlvae.metrics.arrays import classes, code_table
from controlvae.models import Posterior
from controlvae.objectives import gaussian_kl
from controlvae.report.disentangling import UNORDERED, measured_on, scores

SUFFIX = ".scores.json"
_ARRAYS = {  # what a file of codes may hold
    "means": "(examples, latents): of q(z|x), or any codes",
    "log_variances": "the same shape: MIG by sampling and RMIG need them",
    "factors": "(examples, factors): whole numbers; not needed for all 737,280 of 2D Shapes in their order",
    "factor_names": "what to call them",
    "unordered": "names of those that are no quantities; `shape` where the factors are named as those of 2D Shapes",
    "reconstruction": "one number, nats per example",
}
NEEDS = "; ".join(f"{name} {what}" for name, what in _ARRAYS.items())


@dataclass(frozen=True)
class ScoreFile:
    """What `score_codes` found about one model."""

    path: Path

    def metrics(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path} cannot be read: {error}") from None
        return found


def score_files(path: Path) -> list[ScoreFile]:
    """The scores at a path, or those in a folder."""
    found = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path] if path.name.endswith(SUFFIX) else []
    return [ScoreFile(one) for one in found]


def score_codes(
    path: Path, device: torch.device, progress: Callable[[float], None] = lambda share: None
) -> tuple[ScoreFile, dict[str, Any]]:
    """Scores the codes of an `.npz` file and writes `NAME.scores.json` beside it."""
    arrays = _read(path)
    try:
        metrics = _scored(arrays, device, progress)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    file = ScoreFile(path.with_suffix(SUFFIX))
    write_text(file.path, json.dumps({"of": f"the codes in {path.name}", **metrics}, indent=2) + "\n")
    return file, metrics


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != ".npz":
        raise UserError(f"{path} is not an .npz file; it should hold {NEEDS}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except FAULTS as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for name in arrays:
        if name not in _ARRAYS:
            raise unknown(f"array to be scored in {path}", name, _ARRAYS)
    if "means" not in arrays:
        raise UserError(f"{path} has no array `means`; it should hold {NEEDS}")
    return arrays


def _scored(
    arrays: Mapping[str, np.ndarray], device: torch.device, progress: Callable[[float], None]
) -> dict[str, Any]:
    means, log_variances = code_table("means", arrays["means"]), arrays.get("log_variances")
    if log_variances is not None and code_table("log_variances", log_variances).shape != means.shape:
        raise ValueError(f"log_variances must have the shape of means, {means.shape}, got {log_variances.shape}")
    factors, names, unordered = _factors(arrays, len(means))
    chosen = np.random.default_rng(0).permutation(len(means))[: measured_on(len(means), device)]
    means, log_variances = (_tensor(values, chosen, device) for values in (means, log_variances))
    metrics: dict[str, Any] = {
        "examples": len(chosen),
        "available": len(factors),
        "factors": ", ".join(f"{name} (no quantity)" if name in unordered else name for name in names),
        "device": device.type,
    }
    if log_variances is not None:
        kl = gaussian_kl(Posterior(means, log_variances)).double().mean(0)
        metrics |= {"kl": kl.sum().item(), "kl_per_latent": kl.tolist()}
    if (error := arrays.get("reconstruction")) is not None:
        if error.ndim or error.dtype.kind not in "fiu" or not np.isfinite(error):
            raise ValueError("reconstruction must be one number, the mean over examples in nats")
        metrics["reconstruction"] = float(error)
    metrics["active_units"] = active_units(means)
    found = scores(means, log_variances, factors[chosen], names, unordered, progress)
    if not found:
        raise ValueError("no factor that is a quantity varies among its examples, so there is nothing to score")
    return metrics | found


def _tensor(values: np.ndarray | None, chosen: np.ndarray, device: torch.device) -> Any:
    return None if values is None else torch.as_tensor(values[chosen], dtype=torch.float32, device=device)


def _factors(arrays: Mapping[str, np.ndarray], examples: int) -> tuple[np.ndarray, list[str], list[str]]:
    """Classes, (examples, factors), the names of the factors, and of those that are no quantities."""
    given = arrays.get("factors")
    if given is None and examples != IMAGE_COUNT:
        raise ValueError(f"it has no factors, and its {examples:,} codes are not those of all {IMAGE_COUNT:,} shapes")
    table = factor_classes(None) if given is None else given
    default = FACTOR_NAMES if given is None else [f"factor {number + 1}" for number in range(table[:1].size)]
    names = np.asarray(arrays.get("factor_names", default)).tolist()
    classes(table, examples, names)
    unordered = np.asarray(arrays.get("unordered", UNORDERED if set(names) == set(FACTOR_NAMES) else [])).tolist()
    if other := set(unordered).difference(names):
        raise ValueError(f"unordered names {sorted(other)}, which are not among the factors {names}")
    return table, names, unordered
