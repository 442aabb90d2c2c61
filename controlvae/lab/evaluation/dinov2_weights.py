"""Weights of DINOv2, read from a file that the user has. Nothing is downloaded."""

import hashlib
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.paths import data_roots, find_file
from controlvae.lab.evaluation.inception_weights import MissingWeightsError
from controlvae.metrics.image.dinov2 import DINOv2

# The large one comes first: published distances are of its features.
_FILES = tuple(
    f"dinov2_vit{size}14_{kind}.pth"
    for size in ("l", "g", "b", "s")
    for kind in ("pretrain", "reg4_pretrain")
)
_ADDRESS = "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14"


def load_dinov2(weights: Path | None = None, root: Path | None = None) -> DINOv2:
    """Load DINOv2, on the host.

    Args:
        weights: A published file such as `dinov2_vitl14_pretrain.pth`, or its tensors as
            safetensors; None searches the data folders for the published names.
        root: Data folder to search first.

    Raises:
        MissingWeightsError: There is no such file.
        UserError: The file holds something else.
    """
    file = weights or find_file([*_FILES, *(f"dinov2/{name}" for name in _FILES)], root)
    if file is None:
        raise MissingWeightsError(
            f"no DINOv2 weights found: download {_ADDRESS}/{_FILES[0]} (1.2 GB) to "
            f"{data_roots(root)[0]}, or name a file with --weights dinov2=FILE"
        )
    if not file.is_file():
        raise MissingWeightsError(f"no file {file} with weights of DINOv2")
    try:
        tensors = {name: tensor.float() for name, tensor in _read(file).items()}
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return DINOv2(tensors, f"DINOv2, class token, from {file.name}, SHA-256 {digest[:8]}")
    except Exception as error:  # whatever a reader makes of the bytes of another file
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        if "weights_only" in str(error):  # advice on an option of torch's
            reason = "it holds something else than tensors"
        raise UserError(f"{file} does not hold published weights of DINOv2: {reason}") from None


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return load_file(file)
    # weights_only accepts tensors and rejects anything else.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickles that are refused right after
        stored: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return stored
