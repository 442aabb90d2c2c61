"""Units of a user-supplied model's own reconstruction: a mean over values in place of their sum."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from controlvae.diagnostics.units import ReconstructionErrors, reconstruction_errors
from controlvae.lab.custom.adapter import CustomVAE, as_posterior
from controlvae.lab.custom.batches import cast_batch, map_tensors, select_input
from controlvae.lab.custom.noise import Noise
from controlvae.lab.ranks.gradients import keep_buffers

_PARTS = 3  # of the batch, on which the same answer must come out
_RELATIVE_TOLERANCE = 2e-3
_MIN_VALUES = 4  # of an example; for fewer a mean and a sum are hard to tell apart


class _ZeroNoise(TorchFunctionMode):
    """Makes normal noise zero, so that z is the mean of the posterior whoever draws it."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return torch.zeros_like(made) if function in (torch.randn, torch.randn_like) else made


class _NoNoise(Noise):
    """Noise that is zero: the mode does not reach what it draws."""

    def like(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    def normal(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, device=self.device, dtype=self.dtype)


def find_reduction(vae: CustomVAE, batch: Any) -> tuple[float, str] | None:
    """Return the factor of a reconstruction that is a mean over values, and what it is.

    The lab's own likelihoods are sums. Others are compared with the usual errors, as `Health` does,
    where the model has `encode` and `decode`. The answer counts if it is the same for each third of
    the batch.

    Args:
        vae: The model.
        batch: Examples of the training data on the device.

    Returns:
        None for a sum, and for what cannot be told.
    """
    if vae.form == "encode" and not callable(vae.likelihood):
        return None
    if not all(callable(getattr(vae.module, name, None)) for name in ("encode", "decode")):
        return None
    batch = cast_batch(batch, vae.dtype)
    x = select_input(batch, vae.inputs)
    if not isinstance(x, Tensor) or len(x) < 2 * _PARTS or x[0].numel() < _MIN_VALUES:
        return None
    found = set()
    size = len(x) // _PARTS
    for part in range(_PARTS):
        rows = slice(part * size, (part + 1) * size)
        found.add(_identify(vae, map_tensors(batch, partial(_take, rows=rows))))
    return found.pop() if len(found) == 1 else None


def _take(tensor: Tensor, rows: slice) -> Tensor:
    return tensor[rows]


def _identify(vae: CustomVAE, batch: Any) -> tuple[float, str] | None:
    """Return the factor for a part of the batch, or None."""
    x = select_input(batch, vae.inputs)
    module = vae.module
    modes = {layer: layer.training for layer in module.modules()}
    try:
        module.eval()  # dropout would differ between the two calls
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            keep_buffers(module),
            _ZeroNoise(),
        ):
            value = float(vae.losses(batch, _NoNoise(x.device, vae.dtype)).reconstruction)
            posterior = as_posterior(vae._call_encode(x))
            decoded = vae._call_decode(posterior.mean.to(vae.dtype))
            errors = reconstruction_errors(decoded, x)
    except Exception:  # of the user's code, which need not take such a batch
        return None
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    return _match_mean(value, errors)


def _match_mean(value: float, errors: ReconstructionErrors) -> tuple[float, str] | None:
    """Return the number of values whose mean a reconstruction is, or None if it may be a sum."""
    totals, counts = errors.totals.tolist(), errors.values.tolist()
    if any(_is_close(value, total) for total in totals):
        return None
    for name, total, count in zip(errors.names, totals, counts, strict=True):
        if count >= _MIN_VALUES and _is_close(value, total / count):
            return count, f"the {name} averaged over the {count:g} values of an example"
    return None


def _is_close(value: float, other: float) -> bool:
    return abs(value - other) <= _RELATIVE_TOLERANCE * abs(other)
