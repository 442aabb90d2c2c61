"""Weights of a model as a safetensors file, without the optimiser."""

from pathlib import Path

import torch
from torch import Tensor, nn

from controlvae.errors import RunError


def write_weights(model: nn.Module, path: Path) -> None:
    """Write the state dict of a model. Two lines read it, without controlvae:

    >>> from safetensors.torch import load_file
    >>> weights = load_file("model.safetensors")

    Raises:
        RunError: If the file that was written holds other numbers.
    """
    from safetensors.torch import load_file, save_file

    # Copies, because safetensors refuses tensors that share memory, such as tied weights.
    weights = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    save_file(weights, path, metadata={"format": "pt"})
    written = load_file(path)
    if written.keys() != weights.keys() or not all(
        _bytes(written[name]).equal(_bytes(value)) for name, value in weights.items()
    ):
        raise RunError(f"{path.name} does not hold the weights of the model; try again")


def _bytes(value: Tensor) -> Tensor:
    """Return the bytes of a tensor, of which NaN equals itself."""
    return value.reshape(-1).view(torch.uint8)
