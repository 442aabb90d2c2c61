"""One network with its Adam state: backward pass, optimiser step, snapshots."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as adam_step

from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.optimiser import Adam
from controlvae.lab.ranks.sharding import is_sharded, load_whole_state, shard_like
from controlvae.laws import Schedule


class _TrainedParameter(NamedTuple):
    value: nn.Parameter
    state: dict[str, Tensor]  # Adam's step count and moments


class NetworkOptimiser:
    """A module and the Adam that trains it.

    Calls torch's functional `adam` on its own moments. The class `torch.optim.Adam` imports torch's
    compiler when it is first used, which takes 2 to 5 seconds (torch 2.13, two cores).

    Args:
        module: Network to train.
        adam: Settings of the optimiser.
        device: Device to train on.
    """

    def __init__(self, module: nn.Module, adam: Adam, device: torch.device) -> None:
        self.module, self.adam = module.to(device), adam
        sharded = any(is_sharded(value) for value in module.parameters())
        self.fused = device.type in ("cpu", "cuda") and not sharded
        self.rate: float | Tensor = adam.at(1.0)
        if isinstance(adam.rate, Schedule) and device.type == "cuda":
            self.rate = torch.tensor(self.rate, device=device)  # read in place by a captured step
        self.trainable = {
            name: _TrainedParameter(value, _initial_state(value, device))
            for name, value in module.named_parameters()
            if value.requires_grad
        }
        self.after_backward: Callable[[], None] = _do_nothing  # such as adding up gradients

    def set_rate(self, step: int) -> None:
        """Set a scheduled learning rate for a step; steps count from zero."""
        if not isinstance(self.adam.rate, Schedule):
            return
        rate = self.adam.at(step + 1.0)
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def backward_and_step(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`, clip them if set, and take one Adam step."""
        for parameter in self.module.parameters():
            parameter.grad = None
        loss.backward()
        self.after_backward()
        if self.adam.clip is not None:
            self.clip_gradients(self.adam.clip)
        values: list[Tensor] = []
        gradients: list[Tensor] = []
        states: list[dict[str, Tensor]] = []
        for each in self.trainable.values():
            if each.value.grad is not None:  # the loss need not depend on every parameter
                values.append(each.value)
                gradients.append(each.value.grad)
                states.append(each.state)
        with torch.no_grad():
            adam_step(
                values,
                gradients,
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=self.fused,
                amsgrad=False,
                beta1=self.adam.beta1,
                beta2=self.adam.beta2,
                lr=self.rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    def clip_gradients(self, norm: float) -> None:
        """Scale the gradients down if the norm of all of them is larger than `norm`."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def snapshot(self) -> dict[str, Tensor]:
        """Return the module's state and Adam's moments by name, without copying them."""
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        for name, each in self.trainable.items():
            tensors |= {f"adam.{kind}.{name}": value for kind, value in each.state.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a snapshot in place."""
        load_whole_state(self.module, strip_prefix(tensors, "model."))
        for name, each in self.trainable.items():
            for kind, value in each.state.items():
                value.copy_(shard_like(tensors[f"adam.{kind}.{name}"], value))


def _do_nothing() -> None:
    """Do nothing after the backward pass of one process."""


def _initial_state(value: nn.Parameter, device: torch.device) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        # In the parameter's own memory layout, which the fused form relies on.
        "exp_avg": torch.zeros_like(value, requires_grad=False),
        "exp_avg_sq": torch.zeros_like(value, requires_grad=False),
    }
