"""A stack of FactorVAE critics, one per model, each with its own weights and optimiser state."""

from typing import Any

import torch
from torch import Tensor, nn

from controlvae.lab.engines.stacked import ops
from controlvae.lab.engines.stacked.layouts import padded_linear_slots
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.engines.stacked.tiling import PrecisionPolicy
from controlvae.lab.models.critic import NEGATIVE_SLOPE, Critic


class StackedCritic:
    """Critics of several models, with separate gradients for their inputs and their weights.

    The models are trained on the input gradient, the critics on the weight gradients.

    Args:
        template: PyTorch module whose layers every critic has.
        models: Number of models.
        precision: `fp32`, `tf32` or `bf16`.
        device: Device of the weights.
    """

    def __init__(self, template: Critic, models: int, precision: str, device: torch.device) -> None:
        self.policy = PrecisionPolicy(precision)
        linear = [
            (name, module)
            for name, module in template.named_modules()
            if isinstance(module, nn.Linear)
        ]
        # Hidden widths are padded so that rows start at multiples of a vector load: with a width
        # of 1,000 the kernels would load single words.
        hidden = [-(-module.out_features // 16) * 16 for _, module in linear[:-1]]
        widths = [linear[0][1].in_features, *hidden, 2]
        self.slots = [
            padded_linear_slots(name, module, *widths[number : number + 2])
            for number, (name, module) in enumerate(linear)
        ]
        self.parameters = Parameters(
            [slot for pair in self.slots for slot in pair], models, self.policy.map_dtype, device
        )
        self._activations: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        """Return logits, (models, rows, 2), float32, for z, (models, rows, latents).

        The activations are saved for the gradients.
        """
        activations, x = [], z
        for number, (weight, bias) in enumerate(self.slots):
            activations.append(x)
            hidden = number < len(self.slots) - 1
            dtype = self.policy.map_dtype if hidden else torch.float32
            out = torch.empty(*x.shape[:2], weight.shape[1], dtype=dtype, device=x.device)
            x = ops.matmul(
                x,
                weight.operand,
                out,
                self.policy,
                bias=bias.weight,
                relu=hidden,
                slope=NEGATIVE_SLOPE,
            )
        self._activations = activations
        return x

    def input_gradient(self, dy: Tensor) -> Tensor:
        """Return the gradient of z, (models, rows, latents), for the first rows of the last call.

        `dy` is the gradient of their logits, (models, rows, 2).
        """
        rows = dy.shape[1]
        for number in range(len(self.slots) - 1, -1, -1):
            dy = self._layer_input_gradient(number, dy, self._activations[number][:, :rows])
        return dy

    def weight_gradients(self, dy: Tensor) -> None:
        """Write the weight gradients into the slots, for all rows of the last call."""
        for number in range(len(self.slots) - 1, -1, -1):
            x, (weight, bias) = self._activations[number], self.slots[number]
            ops.matmul(
                x.transpose(1, 2),
                dy,
                weight.gradient[:, 0],
                self.policy,
                column_sum=bias.gradient.flatten(1),
            )
            if number > 0:
                dy = self._layer_input_gradient(number, dy, x)

    def _layer_input_gradient(self, number: int, dy: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a layer's input x, a rectified activation in all but the first."""
        dtype = self.policy.map_dtype if number > 0 else torch.float32
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        transposed = self.slots[number][0].operand.transpose(1, 2)
        gate = x if number > 0 else None
        return ops.matmul(dy, transposed, out, self.policy, gate=gate, slope=NEGATIVE_SLOPE)


class CriticLogits(torch.autograd.Function):
    """Logits of z and of shuffled latents in one pass; only z receives a gradient."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, shuffled: Tensor, critic: StackedCritic
    ) -> tuple[Tensor, Tensor]:
        ctx.critic = critic
        logits = critic(torch.cat([z, shuffled], dim=1))
        joint, other = logits.split([z.shape[1], shuffled.shape[1]], dim=1)
        ctx.mark_non_differentiable(other)
        return joint, other

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.critic.input_gradient(gradients[0].contiguous()), None, None
