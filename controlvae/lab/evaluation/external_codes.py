"""Scores of latent codes from any model, read from an `.npz` file and written to a JSON file."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.errors import UserError, shell_command
from controlvae.lab.data.factors import Factors, factors_from_columns, read_factors
from controlvae.lab.data.images.numpy_files import describe_error, load_array_file
from controlvae.lab.data.paths import resolve_path
from controlvae.lab.data.sprite_renderer import FACTOR_NAMES, IMAGE_COUNT, UNORDERED, factor_classes
from controlvae.lab.evaluation.disentanglement import (
    LabelledCodes,
    compute_scores,
    describe_factors,
    scored_count,
)
from controlvae.lab.evaluation.elbo import MUTUAL_INFORMATION_EXAMPLES
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.evaluation.scores import selected_scores
from controlvae.lab.io import finite, write_json
from controlvae.lab.reading import READ_ERRORS, open_file, parse_json, read_text
from controlvae.metrics import active_units, gaussian_total_correlation, mutual_information
from controlvae.metrics._validation import check_codes, factor_labels

SUFFIX = ".scores.json"
_MAX_CODE = 1e6  # codes are scored in float32, which resolves values up to this size
# Arrays that a file of codes may contain.
_ARRAYS = {
    "means": "(examples, latents): of q(z|x), or any codes",
    "log_variances": "same shape, for KL, mutual information, sampled MIG and RMIG",
    "factors": "(examples, factors): integers or words, for the disentanglement scores; known for "
    "all 737,280 images of 2D Shapes in their order",
    "factor_names": "names of the factors",
    "unordered": "names of factors that are not quantities; default `shape` for 2D Shapes",
    "reconstruction": "one number, nats per example",
}
_NO_FACTORS = (
    "none, so every disentanglement score is left out; add an array `factors`, or give --factors "
    "TABLE"
)
ARRAYS_HELP = "; ".join(f"{name} {description}" for name, description in _ARRAYS.items())


@dataclass(frozen=True)
class ScoreFile:
    """Scores of one model, as `score_codes` wrote them."""

    path: Path

    def metrics(self) -> dict[str, Any]:
        """Return the contents of the file, or raise `UserError` if it is not a score file."""
        try:
            scores: dict[str, Any] = parse_json(read_text(self.path))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path} cannot be read: {error}") from None
        required = {"of", "examples", "available", "factors"}
        counts = ("examples", "available")
        if not (
            isinstance(scores, dict)
            and required <= scores.keys()
            and all(type(scores[name]) is int for name in counts)
            and all(isinstance(scores[name], str) for name in ("of", "factors"))
        ):
            raise UserError(f"{self.path} was not written by controlvae score")
        return scores

    def describe(self) -> str:
        """Return for example `20,000 of 20,000 examples, factors shape (unordered), x`."""
        scores = self.metrics()
        # Files of version 0.1 have the same mark, so their text is changed here only.
        factors = scores["factors"].replace("(no quantity)", "(unordered)")
        factors = "none" if factors == _NO_FACTORS else factors
        return f"{scores['examples']:,} of {scores['available']:,} examples, factors {factors}"


def score_files(path: Path) -> list[ScoreFile]:
    """Return the score files at a path: of an `.npz` file, a folder, or a single score file.

    Raises:
        UserError: Codes have no scores, or have changed since they were scored.
    """
    for codes in [path] if path.suffix == ".npz" else sorted(path.glob("*.npz")):
        scored = codes.with_suffix(SUFFIX)
        if not scored.is_file() or ScoreFile(scored).metrics().get("sha256") != _sha256(codes):
            raise UserError(
                f"{codes} has no scores, or has changed since it was scored: "
                f"{shell_command('score', codes)}"
            )
    if path.suffix == ".npz":
        return [ScoreFile(path.with_suffix(SUFFIX))]
    if path.is_dir():
        return [ScoreFile(file) for file in sorted(path.glob(f"[!.]*{SUFFIX}"))]
    return [ScoreFile(path)] if path.name.endswith(SUFFIX) else []


def score_codes(
    path: Path,
    device: torch.device,
    progress: Callable[[float], None] = lambda share: None,
    *,
    factors: str | None = None,
    thorough: bool = False,
    selection: Selection = Selection(),  # noqa: B008  # frozen
    further: Mapping[str, Any] | None = None,
) -> tuple[ScoreFile, dict[str, Any]]:
    """Score the codes of an `.npz` file and write `NAME.scores.json` next to it.

    Args:
        path: File of codes.
        device: Device to compute on.
        progress: Called with the share that is done.
        factors: Table of factors in another file, `table.csv` or `table.csv:shape,scale`, with one
            row per code.
        thorough: Use as many examples and draws on a CPU as on a GPU.
        selection: Scores to measure.
        further: Entries to add that were computed elsewhere.

    Returns:
        The score file and its metrics.
    """
    digest, arrays = _sha256(path), read_codes(path)
    if not os.access(path.parent, os.W_OK):  # check before minutes of work
        raise UserError(f"cannot write the scores next to {path}: its folder is not writable")
    try:
        table = None if factors is None else _read_factor_table(factors, path, arrays)
        metrics = _compute_metrics(
            arrays, table, device, progress, thorough or device.type == "cuda", selection
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    file = ScoreFile(path.with_suffix(SUFFIX))
    metrics = finite({**metrics, **(further or {})})
    write_json(file.path, {"of": f"the codes in {path.name}", "sha256": digest, **metrics})
    return file, metrics


def _sha256(path: Path) -> str:
    """Hash the file, so that scores are tied to the codes and not to their dates."""
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = (
            f"no file {path}"
            if not path.exists()
            else f"cannot read {path}: {error.strerror or error}"
        )
        raise UserError(reason) from None


def read_codes(path: Path) -> dict[str, np.ndarray]:
    """Read a file of codes. Unknown arrays are rejected, because they may be misspelt."""
    try:
        if path.suffix.lower() == ".npy":
            raise ValueError("a single array")
        arrays = load_array_file(path)
    except READ_ERRORS as error:
        raise UserError(
            f"{path} is not an .npz file of plain arrays ({describe_error(error)}); "
            f"write it with numpy.savez: {ARRAYS_HELP}"
        ) from None
    if "means" not in arrays:
        raise UserError(
            f"{path} needs an array `means`, got {', '.join(sorted(arrays))}; expected "
            f"{ARRAYS_HELP}"
        )
    if unknown := arrays.keys() - _ARRAYS:
        raise UserError(
            f"{path} has unknown arrays {', '.join(sorted(unknown))}; expected {ARRAYS_HELP}"
        )
    return arrays


def _read_factor_table(table: str, codes: Path, arrays: Mapping[str, np.ndarray]) -> Factors:
    """Read factors from a separate file."""
    if duplicates := sorted({"factors", "factor_names", "unordered"} & arrays.keys()):
        raise UserError(
            f"{codes} already contains {', '.join(duplicates)}; drop --factors or those arrays"
        )
    file, columns = resolve_path(table, None, advice="give its path from here")
    return read_factors(file, columns, len(check_codes("means", arrays["means"])), None)


def _compute_metrics(
    arrays: Mapping[str, np.ndarray],
    table: Factors | None,
    device: torch.device,
    progress: Callable[[float], None],
    thorough: bool,
    selection: Selection,
) -> dict[str, Any]:
    means, log_variances = check_codes("means", arrays["means"]), arrays.get("log_variances")
    if log_variances is not None:
        check_codes("log_variances", log_variances)
        if log_variances.shape != means.shape:
            raise ValueError(
                f"log_variances must have the shape of means, {means.shape}, got "
                f"{log_variances.shape}"
            )
    known, available = _known_factors(arrays, table, len(means)), len(means)
    chosen = np.random.default_rng(0).permutation(available)[: scored_count(available, thorough)]
    means, log_variances = (_tensor(values, chosen, device) for values in (means, log_variances))
    metrics: dict[str, Any] = {
        "examples": len(chosen),
        "available": available,
        "device": device.type,
        "thorough": thorough,
        **_measure_latents(means, log_variances),
    }
    if (error := arrays.get("reconstruction")) is not None:
        if error.size != 1 or error.dtype.kind not in "fiu" or not np.isfinite(error).all():
            raise ValueError("reconstruction must be one number, the mean over examples in nats")
        metrics["reconstruction"] = error.item()
    metrics["active_units"] = active_units(means)
    if len(means) > means.shape[1] + 1:
        metrics["total_correlation"] = gaussian_total_correlation(means)
    if known is None:
        return metrics | {"factors": _NO_FACTORS}
    factors = known.select(chosen)
    if not factors.names:
        raise ValueError("every factor is constant among the scored examples; pass more examples")
    names = [
        f"{name} (no quantity)" if name in factors.unordered else name for name in factors.names
    ]
    metrics |= {"factors": ", ".join(names), "ground_truth": describe_factors(factors, known)}
    codes = LabelledCodes(means, log_variances, factors, thorough)
    return metrics | compute_scores(codes, selected_scores(selection), progress)


def _measure_latents(means: Tensor, log_variances: Tensor | None) -> dict[str, Any]:
    if log_variances is None:
        return {}
    kl = gaussian_kl(Posterior(means.double(), log_variances.double())).mean(0)
    information = mutual_information(
        means[:MUTUAL_INFORMATION_EXAMPLES], log_variances[:MUTUAL_INFORMATION_EXAMPLES]
    )
    return {
        "kl": kl.sum().item(),
        "kl_per_latent": kl.tolist(),
        "mutual_information": information._asdict(),
    }


def _tensor(values: np.ndarray | None, chosen: np.ndarray, device: torch.device) -> Any:
    if values is None:
        return None
    if (largest := float(np.abs(values).max())) > _MAX_CODE:
        raise ValueError(f"codes must be within ±{_MAX_CODE:g}, got {largest:.3g}; rescale them")
    return torch.as_tensor(values[chosen].astype(np.float32), device=device)


def _known_factors(
    arrays: Mapping[str, np.ndarray], table: Factors | None, examples: int
) -> Factors | None:
    """Return the factors of a separate table, of the file of codes, or of all 2D Shapes images."""
    if table is not None:
        factor_labels(table.classes, examples, table.names, varying=False)
        # The factors of 2D Shapes, given as numbers under their usual names.
        is_shapes = not table.unordered and set(table.names) == set(FACTOR_NAMES)
        return table._replace(unordered=UNORDERED) if is_shapes else table
    values = arrays.get("factors")
    if values is None and examples != IMAGE_COUNT:
        if unused := sorted({"factor_names", "unordered"} & arrays.keys()):
            raise ValueError(
                f"{', '.join(unused)} need an array `factors`; add it, or drop them and pass "
                "--factors"
            )
        return None
    default = list(FACTOR_NAMES)
    if values is None:
        values = factor_classes(None)
    else:
        default = [f"factor {number}" for number in range(values[:1].size)]
    names = _strings(arrays.get("factor_names", default))
    factor_labels(values, examples, names, varying=False)
    is_shapes = set(names) == set(FACTOR_NAMES)
    unordered = _strings(arrays.get("unordered", UNORDERED if is_shapes else []))
    if unknown := set(unordered).difference(names):
        raise ValueError(f"unordered must name some of the factors {names}, got {sorted(unknown)}")
    if values.dtype.kind not in "buif":
        return factors_from_columns(dict(zip(names, values.T, strict=True)), unordered)
    return Factors(tuple(names), values, tuple(unordered))


def _strings(values: Any) -> list[str]:
    strings: list[str] = np.atleast_1d(values).astype(str).tolist()
    return strings
