"""Gradients over ranks: torch's DistributedDataParallel around the losses of a model."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from controlvae.lab.ranks.share import BatchShare

# Name of the option in torch 2.13, or before.
_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"


class LossModule(nn.Module):
    """Module whose forward pass is a function of the model in it, such as its losses.

    DistributedDataParallel and FSDP2 prepare the backward pass in `forward`. Models of the lab and
    of users are called by `encode`, `decode` or `terms`.

    Args:
        model: Network that the function calls.
        function: Function to call.
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        return self.function(*arguments)


def average_gradients(
    model: nn.Module, function: Callable[..., Any], *, unused: bool = False
) -> DistributedDataParallel:
    """Return a module that calls the function and averages gradients in the backward pass.

    The weights and buffers become those of rank 0 first.

    Args:
        model: Network that the function calls, with equal shapes on all ranks.
        function: Function that returns the losses of the rank's rows.
        unused: Some parameters may have no gradient in a step.
    """
    wrapped = LossModule(model, function)
    device = next(model.parameters()).device
    return DistributedDataParallel(
        wrapped,
        device_ids=[device] if device.type == "cuda" else None,
        # Batch norm over all ranks keeps its buffers equal. Others are kept equal here.
        **{_SYNC_BUFFERS: _has_other_buffers(model)},  # type: ignore[arg-type]
        find_unused_parameters=unused,
    )


def _has_other_buffers(model: nn.Module) -> bool:
    """Return whether a model has buffers besides those of batch norm."""
    known = {"running_mean", "running_var", "num_batches_tracked"}
    return any(name.rpartition(".")[2] not in known for name, _ in model.named_buffers())


def sum_gradients(parameters: Iterable[nn.Parameter], share: BatchShare) -> None:
    """Add up the gradients of all ranks in place, with one all-reduce. For small networks.

    Args:
        parameters: Parameters after a backward pass, with the same gradients missing on all ranks.
        share: Share of this rank in the batch.
    """
    if share.is_whole:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view(gradient.shape))


def find_unused(model: nn.Module, loss: Callable[[], Tensor]) -> bool:
    """Return whether a loss leaves parameters without a gradient.

    Args:
        model: Network, whose gradients are deleted.
        loss: Function that returns the loss of a few examples.
    """
    model.zero_grad(set_to_none=True)
    loss().backward()
    trained = [each for each in model.parameters() if each.requires_grad]
    missing = any(each.grad is None for each in trained)
    model.zero_grad(set_to_none=True)
    return missing


def broadcast_state(model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0, in place."""
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor):
            dist.broadcast(tensor.detach(), src=0)


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
