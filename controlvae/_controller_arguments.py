"""Validation of the arguments of a controller: laws, set points and measurements."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.laws.base import Feedback, Law
from controlvae.laws.checks import LARGEST_MEASUREMENT


def expand_laws(law: Law | Sequence[Law], models: int | None) -> tuple[Law, ...]:
    """Return one law for each model."""
    laws = [law] if isinstance(law, Law) else list(law) if isinstance(law, Sequence) else []
    if not laws or not all(isinstance(each, Law) for each in laws):
        raise TypeError(
            f"law must be a law such as PI(target=18.0), or a sequence of laws, got {law!r}"
        )
    if not isinstance(law, Law):
        if models not in (None, len(laws)):
            raise ValueError(f"models must be None or the number of laws {len(laws)}, got {models}")
        return tuple(laws)
    return (law,) * models if isinstance(models, int) else (law,)


def count_models(
    models: int | None, groups: int | None, targets: Sequence[float] | Tensor | None
) -> int | None:
    """Return the number of models, which `groups` and the length of `targets` give as well.

    Args:
        models: Number of models, or None.
        groups: Number of controlled terms of one model, or None.
        targets: Set point of each, or None.
    """
    counts = {"models": models, "groups": groups}
    if targets is not None:
        if isinstance(targets, str) or not hasattr(targets, "__len__"):
            raise TypeError(f"targets must be a sequence with one number each, got {targets!r}")
        counts["the length of targets"] = len(targets)
    received = {name: count for name, count in counts.items() if count is not None}
    if len(set(received.values())) > 1:
        text = ", ".join(f"{name}={count}" for name, count in received.items())
        raise ValueError(f"models, groups and targets must give the same number, got {text}")
    return next(iter(received.values()), None)


def read_targets(target: float | Sequence[float] | Tensor, laws: Sequence[Law]) -> Tensor:
    """Return the set point of each law as float64, after validation by the law."""
    for law in laws:
        if not isinstance(law, Feedback):
            raise ValueError(f"{law} is open-loop and has no target to set")
    is_wrong = isinstance(target, Law | str | bytes | bool | complex)
    if isinstance(target, Tensor):
        is_wrong = target.is_complex() or target.dtype == torch.bool
    if is_wrong:
        raise TypeError(
            f"target must be a number, got {target!r:.80}; pass a schedule to the law instead"
        )
    try:
        values = torch.as_tensor(target, dtype=torch.float64, device="cpu")
    except OverflowError:  # a whole number of hundreds of digits
        raise ValueError(f"target must be below {LARGEST_MEASUREMENT:g}, got more") from None
    except (TypeError, ValueError):
        raise TypeError(f"target must be a number or one per model, got {target!r:.80}") from None
    if values.dim() > 1 or values.numel() not in (1, len(laws)):
        raise ValueError(
            f"target must be one number, or one for each of {len(laws)} models, "
            f"got shape {tuple(values.shape)}"
        )
    values = values.detach().expand(len(laws))
    for law, value in zip(laws, values.tolist(), strict=True):
        assert isinstance(law, Feedback)
        law.check_target(value)
    return values


def read_number(measured: Any) -> float:
    """Return a measurement that is no tensor as a float. A number beyond all floats is infinite.

    Raises:
        TypeError: If it is not a real number. Text, booleans and complex numbers are none.
    """
    kind = getattr(getattr(measured, "dtype", None), "kind", "f")  # of a NumPy or JAX number
    kind = "masked" if bool(getattr(measured, "mask", False)) else kind  # it has no value
    is_wrong = isinstance(measured, str | bytes | bytearray | bool | complex)
    if not (is_wrong or kind not in "fiuV"):  # V: bfloat16 of JAX
        try:
            return float(measured)
        except OverflowError:
            return math.inf
        except (TypeError, ValueError):
            pass
    raise TypeError(
        f"measured must be a number or a tensor in nats per example, got {measured!r:.80}"
    )


def check_measured(measured: Tensor, models: int | None) -> None:
    """Raise unless a measurement is a floating-point scalar, or a vector with one per model."""
    shape = () if models is None else (models,)
    if not measured.is_floating_point():
        raise TypeError(
            f"measured must be a floating-point tensor, got {measured.dtype}: "
            "the weight is returned in its dtype"
        )
    if measured.shape != shape:
        raise ValueError(
            f"measured must have shape {shape}, got {tuple(measured.shape)}: sum the KL over "
            "the latents and average it over the batch; for several models at once, build "
            "Controller(law, models=N)"
        )
