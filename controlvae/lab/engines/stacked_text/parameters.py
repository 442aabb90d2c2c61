"""Weights of many models of one shape, stacked along a first axis, and their Adam."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.lab.optimiser import Adam

_CLIP_EPSILON = 1e-6  # as in torch's clip_grad_norm_
_SHARED_PREFIX = "adam.step."  # all models of a stack are at the same step


def stack_models(models: Sequence[nn.Module]) -> nn.Module:
    """Return a module whose parameters are those of all models, each (models, ...).

    It holds parameters only. `torch.func.functional_call` runs another module with them.

    Raises:
        TypeError: If the models have buffers that training changes.
    """
    stacked = copy.deepcopy(models[0])
    parameters = [dict(model.named_parameters()) for model in models]
    if len(stacked.state_dict()) > len(parameters[0]):
        raise TypeError(f"{type(stacked).__name__} has buffers; it cannot be stacked")
    for name, first in parameters[0].items():
        parent, _, key = name.rpartition(".")
        values = torch.stack([each[name].detach() for each in parameters])
        setattr(stacked.get_submodule(parent), key, nn.Parameter(values, first.requires_grad))
    return stacked


class StackedOptimiser(NetworkOptimiser):
    """Adam for stacked parameters. It treats every model as if it were alone.

    Args:
        module: Result of `stack_models`.
        adam: Settings of the optimiser.
        device: Device to train on.
    """

    def __init__(self, module: nn.Module, adam: Adam, device: torch.device) -> None:
        super().__init__(module, adam, device)
        self.parameters: dict[str, Tensor] = {
            f"model.{name}": value for name, value in module.named_parameters()
        }

    def clip_gradients(self, norm: float) -> None:
        """Scale the gradients of each model down if their norm is larger than `norm`."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = [g.reshape(len(g), -1).norm(dim=1) for g in gradients]
        total = torch.stack(norms).norm(dim=0)
        scale = (norm / (total + _CLIP_EPSILON)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))

    def snapshot_model(self, model: int) -> dict[str, Tensor]:
        """Return one model's weights and moments by name, without copying them."""
        return {
            name: value if name.startswith(_SHARED_PREFIX) else value[model]
            for name, value in self.snapshot().items()
        }

    def restore_model(self, model: int, tensors: dict[str, Tensor]) -> None:
        """Load one model from a snapshot, in place."""
        for name, value in self.snapshot_model(model).items():
            value.detach().copy_(tensors[name])
