"""Validation of the arguments of a controller: its laws and its set points."""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.laws.base import Feedback, Law


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


def read_targets(target: float | Tensor, laws: Sequence[Law]) -> Tensor:
    """Return the set point of each law as float64, after validation by the law."""
    for law in laws:
        if not isinstance(law, Feedback):
            raise ValueError(f"{law} is open-loop and has no target to set")
    if isinstance(target, Law | str):
        raise TypeError(
            f"target must be a number of nats, got {target!r}; pass a schedule to the law instead"
        )
    values = torch.as_tensor(target, dtype=torch.float64, device="cpu")
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
