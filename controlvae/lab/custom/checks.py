"""Checks of a user-supplied model on one batch, each with one line that names the cure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from controlvae.errors import UserError
from controlvae.lab.custom.adapter import CustomVAE, Losses
from controlvae.lab.custom.batches import count_examples, describe, map_tensors
from controlvae.lab.custom.noise import Noise

# An estimate from one sample may be negative on a batch, but not by this much.
_LOWEST_KL = -100.0


@contextmanager
def explain_failures(module: nn.Module, batch: Any) -> Iterator[None]:
    """Turn an exception of a user's model into one line that says what failed and where."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise UserError(
            f"{type(module).__name__} failed on one batch, {describe(batch)}: "
            f"{type(error).__name__}: {reason}{_innermost_line(error.__traceback__)}; "
            f"{_cure(error)}"
        ) from error


@contextmanager
def keep_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of a module, such as those of batch norm, after a trial."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in before and before[name].shape == buffer.shape:
                    buffer.copy_(before[name])


def check_posterior(mean: Tensor, x: Tensor) -> None:
    """Raise UserError if a posterior has not one row per example."""
    if mean.dim() < 2 or len(mean) != len(x):
        raise UserError(
            f"encode(x) must return one row per example: got a mean of {tuple(mean.shape)} for "
            f"a batch of {len(x)}"
        )


def check_decoded(vae: CustomVAE, z: Tensor, x: Tensor) -> None:
    """Raise UserError if the decoder's output does not fit the data."""
    decoded = vae._call_decode(z)
    if isinstance(decoded, Distribution):
        if decoded.batch_shape.numel() * decoded.event_shape.numel() != x.numel():
            raise UserError(
                f"decode(z) returned a distribution of {tuple(decoded.batch_shape)} and "
                f"{tuple(decoded.event_shape)} for data of {tuple(x.shape)}"
            )
        return
    if vae.likelihood == "categorical":
        shape = tuple(decoded.shape)
        last, second = shape[:-1] == tuple(x.shape), shape[:1] + shape[2:] == tuple(x.shape)
        if not (last or second):
            raise UserError(
                f"decode(z) must return logits (batch, classes, ...) or (batch, ..., classes) for "
                f"class numbers of {tuple(x.shape)}, got {shape}"
            )
        return
    if not callable(vae.likelihood) and decoded.shape[1:].numel() != x.shape[1:].numel():
        raise UserError(
            f"decode(z) must return as many values as the data has, {tuple(x.shape)}, "
            f"got {tuple(decoded.shape)}"
        )


def check_losses(vae: CustomVAE, batch: Any) -> None:
    """Raise UserError if the losses of a batch are not finite, have no gradient, or are sums."""
    losses = _probe(vae, batch)
    for name in ("reconstruction", "kl"):
        value = getattr(losses, name)
        if not bool(torch.isfinite(value)):
            raise UserError(
                f"the {name} of the first batch is {value.item():g}; check the data's range, "
                "the initial weights, and logarithms of zero"
            )
    if not (losses.reconstruction.requires_grad and losses.kl.requires_grad):
        missing = "reconstruction" if not losses.reconstruction.requires_grad else "kl"
        raise UserError(
            f"the {missing} has no gradient; compute it without torch.no_grad, detach or NumPy"
        )
    if float(losses.kl.detach()) < _LOWEST_KL:
        raise UserError(f"the kl of the first batch is {losses.kl.item():.4g}; is its sign wrong?")
    if vae.form != "encode":
        _check_not_summed(vae, batch, losses)
    (losses.reconstruction + losses.kl).backward()
    trained = [p for p in vae.module.parameters() if p.requires_grad]
    has_gradient = any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in trained)
    vae.module.zero_grad(set_to_none=True)
    if not has_gradient:
        raise UserError("no parameter of the model receives a gradient from its losses")


def _check_not_summed(vae: CustomVAE, batch: Any, losses: Losses) -> None:
    """Raise UserError if doubling the batch doubles a loss: it is a sum over examples."""
    with torch.no_grad():
        twice = _probe(vae, map_tensors(batch, lambda t: torch.cat([t, t]) if t.dim() else t))
    for name in ("reconstruction", "kl"):
        one, two = (float(getattr(each, name).detach()) for each in (losses, twice))
        if abs(one) > 1e-6 and 1.8 < two / one < 2.2:
            raise UserError(
                f"the {name} is summed over the batch: {one:.4g} for {count_examples(batch)} "
                f"examples and {two:.4g} for the same twice; return one value per example, or "
                "their mean"
            )


def _probe(vae: CustomVAE, batch: Any) -> Losses:
    device = next(vae.module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return vae.losses(batch, Noise(device, vae.dtype))


def _innermost_line(traceback: Any) -> str:
    """Return the last place outside of torch and this package, such as ` (my_vae.py line 12)`."""
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "torch" not in Path(code.co_filename).parts and "controlvae" not in code.co_filename:
            place = f" ({Path(code.co_filename).name} line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


def _cure(error: Exception) -> str:
    message = str(error)
    if "same device" in message or "on cuda" in message or "is on cpu" in message:
        return "keep constants of the model in buffers (register_buffer), which move with it"
    if "shape" in message or "size" in message or "mat1" in message:
        return "check that the model fits the shape of the data"
    if "dtype" in message or "type" in message:
        return "check the types that the model and the data have"
    return "try model.encode or model.terms on one batch by hand"
