"""Sharding of a model over ranks with FSDP2, and whole tensors from its shards."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from controlvae.lab.ranks.gradients import LossModule


def find_units(model: nn.Module, loss: Callable[[], Tensor]) -> list[nn.Module]:
    """Return the parts of a model that FSDP2 can shard on their own, largest first.

    FSDP2 collects the weights of a part when its `forward` is called, so a part counts if a loss
    calls it that way. Parts that share parameters do not count.

    Args:
        model: Network to shard.
        loss: Function that returns the loss of a few examples.
    """
    called: set[int] = set()
    parts = [part for part in model.modules() if part is not model]

    def note_call(part: nn.Module, _arguments: Any) -> None:
        called.add(id(part))

    hooks = [part.register_forward_pre_hook(note_call) for part in parts]
    try:
        loss()
    finally:
        for hook in hooks:
            hook.remove()
    model.zero_grad(set_to_none=True)
    units: list[nn.Module] = []
    covered: set[int] = set()
    for part in parts:
        inside = {id(parameter) for parameter in part.parameters()}
        if id(part) not in called or not inside or inside & covered or id(part) in covered:
            continue
        if _are_used_elsewhere(model, part, inside):
            continue
        units.append(part)
        covered |= inside | {id(inner) for inner in part.modules()}
    return units


def _are_used_elsewhere(model: nn.Module, part: nn.Module, parameters: set[int]) -> bool:
    """Return whether a module outside of a part holds one of its parameters too."""
    inner = {id(each) for each in part.modules()}
    return any(
        id(parameter) in parameters
        for other in model.modules()
        if id(other) not in inner
        for parameter in other.parameters(recurse=False)
    )


def shard_model(model: nn.Module, units: list[nn.Module]) -> LossModule:
    """Shard a model in place and return the module to call for its losses.

    Args:
        model: Network with the same weights on every rank.
        units: Parts whose weights are collected only while they compute. The rest is one part.
    """
    from torch.distributed.fsdp import fully_shard

    for unit in units:
        fully_shard(unit)
    wrapped = LossModule(model, _require_function)
    fully_shard(wrapped)
    return wrapped


def _require_function(*_arguments: Any) -> Any:
    raise RuntimeError("the function of a sharded model was not set")


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is a shard of a larger one."""
    return hasattr(value, "full_tensor")  # without importing torch.distributed.tensor


def whole_tensor(value: Tensor) -> Tensor:
    """Return a tensor with the shards of all ranks. Every rank calls this for a sharded one."""
    collect = getattr(value, "full_tensor", None)
    whole: Tensor = value if collect is None else collect()
    return whole


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor sharded as another one is, without communication.

    Args:
        value: Whole tensor, equal on all ranks.
        like: Tensor of the same shape, or its shard.
    """
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    placed = value.to(like.device)
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)


def load_whole_state(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load whole tensors into a module that may be sharded.

    Args:
        module: Network with the same names and shapes.
        tensors: Its state, equal on all ranks.
    """
    own = module.state_dict()
    if any(is_sharded(value) for value in own.values()):
        tensors = {
            name: shard_like(value, own[name]) if name in own else value
            for name, value in tensors.items()
        }
    module.load_state_dict(tensors)
