"""A stack of critics: one for each model, with its own weights and optimiser."""

from typing import Any

import torch
from torch import Tensor, nn

from controlvae.lab.engines.stacked import ops as products
from controlvae.lab.engines.stacked.layers import padded_slots
from controlvae.lab.engines.stacked.ops import Precision
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.models.critic import NEGATIVE_SLOPE, Critic


class StackedCritic:
    """The plain critic for many models at once. Its two gradients, to z and to its weights, are asked for apart."""

    def __init__(self, template: Critic, models: int, precision: str, device: torch.device) -> None:
        self.arithmetic = Precision(precision)
        linear = [
            (key, module)
            for key, module in template.named_modules()
            if isinstance(module, nn.Linear)
        ]
        # Hidden widths are padded so that rows begin at whole vectors: a width of 1,000 would be read word by word.
        widths = [
            linear[0][1].in_features,
            *(-(-m.out_features // 16) * 16 for _, m in linear[:-1]),
            2,
        ]
        self.slots = [padded_slots(key, m, *widths[n : n + 2]) for n, (key, m) in enumerate(linear)]
        self.parameters = Parameters(
            [slot for pair in self.slots for slot in pair], models, self.arithmetic.maps, device
        )
        self._activations: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        """Logits, (models, rows, 2), float32; z: (models, rows, latents). Remembers what the gradients need."""
        activations, x = [], z
        for number, (weight, bias) in enumerate(self.slots):
            activations.append(x)
            hidden = number < len(self.slots) - 1
            dtype = self.arithmetic.maps if hidden else torch.float32
            out = torch.empty(*x.shape[:2], weight.shape[1], dtype=dtype, device=x.device)
            x = products.matmul(
                x,
                weight.operand,
                out,
                self.arithmetic,
                bias=bias.weight,
                relu=hidden,
                slope=NEGATIVE_SLOPE,
            )
        self._activations = activations
        return x

    def input_gradient(self, dy: Tensor) -> Tensor:
        """Of the first rows of the last call, as many as dy has: (models, rows, 2) -> (models, rows, latents)."""
        rows = dy.shape[1]
        for number in range(len(self.slots) - 1, -1, -1):
            dy = self._through(number, dy, self._activations[number][:, :rows])
        return dy

    def weight_gradients(self, dy: Tensor) -> None:
        """Of all rows of the last call, into the slots."""
        for number in range(len(self.slots) - 1, -1, -1):
            x, (weight, bias) = self._activations[number], self.slots[number]
            products.matmul(
                x.transpose(1, 2),
                dy,
                weight.gradient[:, 0],
                self.arithmetic,
                column_sum=bias.gradient.flatten(1),
            )
            if number > 0:
                dy = self._through(number, dy, x)

    def _through(self, number: int, dy: Tensor, x: Tensor) -> Tensor:
        """The gradient at a layer's input x, which is a rectified activation in all layers but the first."""
        dtype = self.arithmetic.maps if number > 0 else torch.float32
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        back = self.slots[number][0].operand.transpose(1, 2)
        return products.matmul(
            dy, back, out, self.arithmetic, gate=x if number > 0 else None, slope=NEGATIVE_SLOPE
        )


class Judged(torch.autograd.Function):
    """The critic's logits for z and for shuffled latents, in one pass; only z's receive a gradient."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, independent: Tensor, critic: StackedCritic
    ) -> tuple[Tensor, Tensor]:
        ctx.critic = critic
        logits = critic(torch.cat([z, independent], dim=1))
        joint, other = logits.split([z.shape[1], independent.shape[1]], dim=1)
        ctx.mark_non_differentiable(other)
        return joint, other

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.critic.input_gradient(gradients[0].contiguous()), None, None
