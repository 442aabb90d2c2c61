"""Codes that any model gave, read from a file: what they carry, and every disentanglement score, into a JSON file."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.errors import UserError, shell_command
from controlvae.lab.data.factors import Factors, as_factors, read_factors
from controlvae.lab.data.images.numpy_files import FAULTS
from controlvae.lab.data.paths import resolve_path
from controlvae.lab.data.sprite_renderer import FACTOR_NAMES, IMAGE_COUNT, UNORDERED, factor_classes
from controlvae.lab.evaluation.disentanglement import ground_truth, measured_on, scores
from controlvae.lab.evaluation.evaluate import MIXED
from controlvae.lab.io import finite, write_json
from controlvae.metrics import active_units, mutual_information
from controlvae.metrics._validation import classes, code_table

SUFFIX = ".scores.json"
_WITHIN = 1e6  # codes that float32, in which they are scored, tells apart
_ARRAYS = {  # what a file of codes may hold
    "means": "(examples, latents): of q(z|x), or any codes",
    "log_variances": "the same shape: KL, mutual information, MIG by sampling and RMIG need them",
    "factors": "(examples, factors): whole numbers or words, for the disentanglement scores; those of all 737,280 of "
    "2D Shapes in their order are known",
    "factor_names": "what to call them",
    "unordered": "names of those that are no quantities; `shape` where the factors are named as those of 2D Shapes",
    "reconstruction": "one number, nats per example",
}
_NO_FACTORS = "none, so every disentanglement score is left out; add an array `factors`, or give --factors TABLE"
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
        if not (
            isinstance(found, dict) and {"of", "examples", "available", "factors"} <= found.keys()
        ):
            raise UserError(f"{self.path} was not written by controlvae score")
        return found

    def words(self) -> str:
        """`20,000 of 20,000 examples, factors shape (no quantity), x`"""
        found = self.metrics()
        factors = "none" if found["factors"] == _NO_FACTORS else found["factors"]
        return f"{found['examples']:,} of {found['available']:,} examples, factors {factors}"


def score_files(path: Path) -> list[ScoreFile]:
    """The scores at a path, or of all codes in a folder. Codes that were not scored as they are now are refused."""
    for codes in [path] if path.suffix == ".npz" else sorted(path.glob("*.npz")):
        scored = codes.with_suffix(SUFFIX)
        if not scored.is_file() or ScoreFile(scored).metrics().get("sha256") != _digest(codes):
            raise UserError(
                f"{codes} holds codes without scores, or was written since: {shell_command('score', codes)}"
            )
    if path.suffix == ".npz":
        return [ScoreFile(path.with_suffix(SUFFIX))]
    found = (
        sorted(path.glob(f"[!.]*{SUFFIX}"))
        if path.is_dir()
        else [path]
        if path.name.endswith(SUFFIX)
        else []
    )
    return [ScoreFile(one) for one in found]


def score_codes(
    path: Path,
    device: torch.device,
    progress: Callable[[float], None] = lambda share: None,
    *,
    factors: str | None = None,
    thorough: bool = False,
) -> tuple[ScoreFile, dict[str, Any]]:
    """Scores the codes of an `.npz` file and writes `NAME.scores.json` beside it.

    `factors` is a table of them in a file of its own, `table.csv` or `table.csv:shape,scale`, a row per code.
    `thorough` takes as many examples and draws on a CPU as on a GPU.
    """
    digest, arrays = _digest(path), _read(path)
    if not os.access(path.parent, os.W_OK):  # not after minutes of work
        raise UserError(f"cannot write the scores beside {path}: its folder takes no files")
    try:
        found = None if factors is None else _table(factors, path, arrays)
        metrics = _scored(arrays, found, device, progress, thorough or device.type == "cuda")
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    file = ScoreFile(path.with_suffix(SUFFIX))
    metrics = finite(metrics)
    write_json(file.path, {"of": f"the codes in {path.name}", "sha256": digest, **metrics})
    return file, metrics


def _digest(path: Path) -> str:
    """Of the file's bytes: scores belong to codes, whatever their dates."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"no file {path}" if not path.exists() else f"{path} cannot be read: {error.strerror}"
        ) from None


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, known ones alone: a name with a slip in it would go unnoticed otherwise."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (*FAULTS, AttributeError, MemoryError):
        raise UserError(
            f"{path} is no .npz of plain arrays; write it with numpy.savez, and in it {NEEDS}"
        ) from None
    if "means" not in arrays:
        raise UserError(
            f"{path} has no array `means`, it has {', '.join(sorted(arrays))}; it should hold {NEEDS}"
        )
    if other := arrays.keys() - _ARRAYS:
        raise UserError(f"{path} holds {', '.join(sorted(other))}, which it may not; {NEEDS}")
    return arrays


def _table(given: str, codes: Path, arrays: Mapping[str, np.ndarray]) -> Factors:
    """Factors from a file of their own."""
    if double := sorted({"factors", "factor_names", "unordered"} & arrays.keys()):
        raise UserError(f"{codes} holds {', '.join(double)} already; leave --factors out, or those")
    table, wanted = resolve_path(given, None, advice="give its path from here")
    return read_factors(table, wanted, len(code_table("means", arrays["means"])), None)


def _scored(
    arrays: Mapping[str, np.ndarray],
    table: Factors | None,
    device: torch.device,
    progress: Callable[[float], None],
    thorough: bool,
) -> dict[str, Any]:
    means, log_variances = code_table("means", arrays["means"]), arrays.get("log_variances")
    if (
        log_variances is not None
        and code_table("log_variances", log_variances).shape != means.shape
    ):
        raise ValueError(
            f"log_variances must have the shape of means, {means.shape}, got {log_variances.shape}"
        )
    known, available = _factors(arrays, table, len(means)), len(means)
    chosen = np.random.default_rng(0).permutation(available)[: measured_on(available, thorough)]
    means, log_variances = (_tensor(values, chosen, device) for values in (means, log_variances))
    metrics: dict[str, Any] = {
        "examples": len(chosen),
        "available": available,
        "device": device.type,
        "thorough": thorough,
    }
    if log_variances is not None:
        kl = gaussian_kl(Posterior(means.double(), log_variances.double())).mean(0)
        told = mutual_information(means[:MIXED], log_variances[:MIXED])
        metrics |= {
            "kl": kl.sum().item(),
            "kl_per_latent": kl.tolist(),
            "mutual_information": told._asdict(),
        }
    if (error := arrays.get("reconstruction")) is not None:
        if error.size != 1 or error.dtype.kind not in "fiu" or not np.isfinite(error).all():
            raise ValueError("reconstruction must be one number, the mean over examples in nats")
        metrics["reconstruction"] = error.item()
    metrics["active_units"] = active_units(means)
    if known is None:
        return metrics | {"factors": _NO_FACTORS}
    factors = known.among(chosen)
    if not factors.names:
        raise ValueError(
            "no factor varies among the examples that were chosen, so there is nothing to score"
        )
    names = [
        f"{name} (no quantity)" if name in factors.unordered else name for name in factors.names
    ]
    metrics |= {"factors": ", ".join(names), "ground_truth": ground_truth(factors, known)}
    return metrics | scores(means, log_variances, factors, progress, thorough)


def _tensor(values: np.ndarray | None, chosen: np.ndarray, device: torch.device) -> Any:
    if values is None:
        return None
    if (largest := float(np.abs(values).max())) > _WITHIN:
        raise ValueError(f"codes must lie within ±{_WITHIN:g}, got one of size {largest:.3g}")
    return torch.as_tensor(values[chosen].astype(np.float32), device=device)


def _factors(
    arrays: Mapping[str, np.ndarray], table: Factors | None, examples: int
) -> Factors | None:
    """Those of a table of their own; else of the file of codes itself; else those of all 2D Shapes; else none."""
    if table is not None:
        classes(table.classes, examples, table.names, varying=False)
        shapes = not table.unordered and set(table.names) == set(
            FACTOR_NAMES
        )  # in numbers, with their names
        return table._replace(unordered=UNORDERED) if shapes else table
    given = arrays.get("factors")
    if given is None and examples != IMAGE_COUNT:
        if of_none := sorted({"factor_names", "unordered"} & arrays.keys()):
            raise ValueError(
                f"it holds {', '.join(of_none)} and no factors; add them, or give --factors without those"
            )
        return None
    values = factor_classes(None) if given is None else given
    default = (
        FACTOR_NAMES if given is None else [f"factor {number}" for number in range(values[:1].size)]
    )
    names = _words(arrays.get("factor_names", default))
    classes(values, examples, names, varying=False)
    unordered = _words(
        arrays.get("unordered", UNORDERED if set(names) == set(FACTOR_NAMES) else [])
    )
    if other := set(unordered).difference(names):
        raise ValueError(
            f"unordered names {sorted(other)}, which are not among the factors {names}"
        )
    if values.dtype.kind not in "buif":
        return as_factors(dict(zip(names, values.T, strict=True)), unordered)
    return Factors(tuple(names), values, tuple(unordered))


def _words(given: Any) -> list[str]:
    words: list[str] = np.atleast_1d(given).astype(str).tolist()
    return words
