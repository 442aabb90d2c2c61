"""Checks of a user-supplied model on one batch, each with one line that names the cure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from controlvae.distributions import Posterior
from controlvae.errors import UserError
from controlvae.lab.custom.adapter import CustomVAE, Losses
from controlvae.lab.custom.batches import count_examples, describe, iter_tensors, map_tensors
from controlvae.lab.custom.failures import summarise
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
        raise UserError(
            f"{type(module).__name__} failed on one batch, {describe(batch)}: "
            f"{summarise(error)}; {_cure(error, batch)}"
        ) from error


def check_module(module: nn.Module) -> None:
    """Raise UserError if a module cannot be trained, whatever its losses are."""
    name, trained = type(module).__name__, [p for p in module.parameters() if p.requires_grad]
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UserError(
            f"{name} hides encode, decode and terms; pass the module inside it, model.module"
        )
    if any(p.is_meta for p in module.parameters()):
        raise UserError(
            f"{name} is on the meta device and has no values; "
            "create it on a real device, without torch.device('meta')"
        )
    if not trained:
        frozen = next(module.parameters(), None) is not None
        raise UserError(
            f"{name} has no parameter to train: "
            + (
                "requires_grad is False for all; call model.requires_grad_(True)"
                if frozen
                else "it has none at all; register layers as attributes, or in nn.ModuleList"
            )
        )
    small = {p.dtype for p in trained} & {torch.float16, torch.bfloat16}
    if small:
        kind = str(small.pop()).removeprefix("torch.")
        raise UserError(
            f"{name} has weights in {kind}, which lose small updates; pass model.float(), and "
            "precision='bf16' for fast products on a GPU"
        )


def check_posterior(posterior: Posterior | Distribution, mean: Tensor, x: Tensor) -> None:
    """Raise UserError if a posterior has not one row per example, or is not finite.

    Args:
        posterior: What `encode` returned.
        mean: Its mean, or a sample of it.
        x: Batch that was encoded.
    """
    if mean.dim() < 2 or len(mean) != len(x):
        raise UserError(
            f"encode(x) must return one row per example: got a mean of {tuple(mean.shape)} for "
            f"a batch of {len(x)}"
        )
    values = (
        {"z": mean}
        if isinstance(posterior, Distribution)
        else {
            "mean": posterior.mean,
            "log_variance": posterior.log_variance,
        }
    )
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise UserError(
                f"encode(x) returned NaN or infinity in the {name} of the first batch; check the "
                "data's range, the initial weights, and logarithms of zero"
            )


def check_decoded(vae: CustomVAE, z: Tensor, x: Tensor) -> None:
    """Raise UserError if the decoder's output does not fit the data."""
    decoded = vae._call_decode(z)
    if callable(vae.likelihood):
        _check_per_example(vae._nll(decoded, x), len(x))
        return
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
    if len(decoded) != len(x) or decoded.shape[1:].numel() != x.shape[1:].numel():
        raise UserError(
            f"decode(z) must return as many values as the data has, {tuple(x.shape)}, "
            f"got {tuple(decoded.shape)}; change its last layer, or crop or resize the data"
        )


def _check_per_example(loss: Any, count: int) -> None:
    if not isinstance(loss, Tensor) or loss.shape != (count,):
        raise UserError(
            f"likelihood must return one loss per example, ({count},), got {describe(loss)}; "
            "sum over all axes but the first"
        )


def check_terms(terms: Any, batch: Any) -> tuple[str, ...]:
    """Raise UserError if loss terms have not one value per example, nor are means.

    Args:
        terms: What `terms` or `forward` returned, as names and values.
        batch: Batch that they belong to.

    Returns:
        Names of the terms that are one number, which may be a mean or a sum.
    """
    counts = {len(tensor) for _, tensor in iter_tensors(batch) if tensor.dim()}
    numbers = []
    for name, value in terms.items():
        if not isinstance(value, Tensor):
            continue
        if value.numel() == 1:
            numbers.append(name)
            continue
        shape = tuple(value.shape)
        if len(counts) == 1 and shape[:1] != tuple(counts):
            raise UserError(
                f"the {name} must have one value per example, ({counts.pop()},), or be their "
                f"mean, got {shape}; do not slice or transpose the batch"
            )
        if name != "kl" and len(shape) > 1:
            raise UserError(
                f"the {name} must have one value per example, ({shape[0]},), got {shape}; "
                "sum it over all axes but the first"
            )
    return tuple(numbers)


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
        names = check_terms(_call_terms(vae, batch), batch)
        _check_not_summed(vae, batch, losses, names)
    (losses.reconstruction + losses.kl).backward()
    trained = [p for p in vae.module.parameters() if p.requires_grad]
    has_gradient = any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in trained)
    vae.module.zero_grad(set_to_none=True)
    if not has_gradient:
        raise UserError("no parameter of the model receives a gradient from its losses")


def _check_not_summed(vae: CustomVAE, batch: Any, losses: Losses, names: Sequence[str]) -> None:
    """Raise UserError if doubling the batch doubles a loss: it is a sum over examples."""
    if not set(names) & {"reconstruction", "kl"}:
        return
    repeated = []
    with torch.no_grad():
        for times in (2, 4):  # a noisy mean may double once by chance
            again = map_tensors(batch, partial(_repeat, times))
            repeated.append(_probe(vae, again))
    for name in ("reconstruction", "kl"):
        one, two, four = (float(getattr(each, name).detach()) for each in (losses, *repeated))
        if name in names and abs(one) > 1e-6 and 1.8 < two / one < 2.2 and 3.4 < four / one < 4.6:
            raise UserError(
                f"the {name} is summed over the batch: {one:.4g} for {count_examples(batch)} "
                f"examples and {two:.4g} for the same twice; return one value per example, or "
                "their mean"
            )


def _repeat(times: int, tensor: Tensor) -> Tensor:
    return torch.cat([tensor] * times) if tensor.dim() else tensor


def _call_terms(vae: CustomVAE, batch: Any) -> dict[str, Any]:
    device = next(vae.module.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return vae.named_terms(batch, Noise(device, vae.dtype))


def _probe(vae: CustomVAE, batch: Any) -> Losses:
    device = next(vae.module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return vae.losses(batch, Noise(device, vae.dtype))


def _cure(error: Exception, batch: Any) -> str:
    message = str(error)
    if "same device" in message or "on cuda" in message or "is on cpu" in message:
        return "keep constants of the model in buffers (register_buffer), which move with it"
    if "dtype" in message or "scalar type" in message or "type" in message.split():
        kinds = {t.dtype for _, t in iter_tensors(batch) if not t.is_floating_point()}
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        if kinds:
            return f"the data is {names} and is passed as it is; pass floats, e.g. data.float()"
        return "check the types that the model and the data have"
    if "shape" in message or "size" in message or "mat1" in message:
        return "check that the model fits the shape of the data"
    return "try model.encode or model.terms on one batch by hand"
