"""Conditioning on the rate: scale and shift of every layer as functions of the set point."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from controlvae.errors import UserError

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
# A gate must close at a low rate before the weights behind it shrink for all rates.
_GATE_SPEED = 10.0


class RateConditioning(nn.Module):
    r"""Feature-wise affine modulation of a network's layers by the rate.

    .. math::  h_c \leftarrow h_c\,(1 + a_c(r)) + b_c(r)

    Linear layers and 1x1 convolutions also have their input scaled by 1 + c(r). A decoder enters
    through such a layer, and a latent that carries nothing at a low rate is noise there: without
    this gate the decoder would learn to ignore it at every rate.

    a, b and c are linear in two descriptions of log r: a small network, which shares what it learns
    over the range, and hat functions centred at the set points, which give each of them parameters
    of its own and are interpolated in between. All start at zero, so the network starts as the
    unconditioned one.

    Perez et al., *FiLM: Visual Reasoning with a General Conditioning Layer*, 2018.

    Args:
        set_points: Set points in nats, ascending and evenly spaced on a logarithmic scale.
        widths: Number of factors and shifts of each layer by its name.
        features: Width of the small network.
    """

    knots: Tensor

    def __init__(
        self, set_points: Sequence[float], widths: dict[str, int], features: int = 32
    ) -> None:
        super().__init__()
        knots = torch.tensor(set_points, dtype=torch.float64).log().float()
        self.register_buffer("knots", knots, persistent=False)
        self.low, self.high = float(set_points[0]), float(set_points[-1])
        self.rate = math.sqrt(self.low * self.high)  # outside of `at`
        self.shared = nn.Sequential(
            nn.Linear(1, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU()
        )
        self.places: dict[str, slice] = {}
        total = 0
        for name, width in widths.items():
            self.places[name] = slice(total, total + width)
            total += width
        self.affine = nn.Linear(features + len(knots), total)
        nn.init.zeros_(self.affine.weight)
        nn.init.zeros_(self.affine.bias)
        self._modulation: Tensor | None = None  # of the examples of a batch, (batch, total)

    def describe(self, rates: Tensor) -> Tensor:
        """Return the features of rates in nats, (n, features + set points)."""
        place = rates.log().clamp(self.knots[0], self.knots[-1])[:, None]
        spacing = self.knots[1] - self.knots[0]
        hats = (1 - (place - self.knots).abs() / spacing).clamp(min=0)
        centred = (place - self.knots.mean()) / (self.knots[-1] - self.knots[0])
        return torch.cat([self.shared(centred), hats], dim=1)

    def modulate(self, rates: Tensor) -> Tensor:
        """Return scales and shifts of all layers at rates in nats, (n, total)."""
        return self.affine(self.describe(rates.to(self.affine.weight.dtype)))

    @contextmanager
    def at(self, rates: float | Tensor, repeats: int = 1) -> Iterator[None]:
        """Run the network at these rates inside a `with` block.

        Args:
            rates: One rate for all examples, or the rate of each example, (batch,).
            repeats: Times that the rates are repeated to give one to each example.
        """
        before = self._modulation
        self._modulation = self.modulate(self._as_tensor(rates)).repeat(repeats, 1)
        try:
            yield
        finally:
            self._modulation = before

    def set_rate(self, rate: float) -> None:
        """Set the rate that the network has outside of `at`.

        Raises:
            UserError: If the network has not learnt this rate.
        """
        self.rate = self.check(rate)

    def check(self, rate: float) -> float:
        """Return a rate that the network has learnt, or raise UserError."""
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        rounding = 1 + 1e-6
        if not (is_number and self.low / rounding <= rate <= self.high * rounding):
            raise UserError(
                f"rate must be a number of nats from {self.low:.4g} to {self.high:.4g}, which the "
                f"model has learnt, got {rate!r}"
            )
        return float(rate)

    def of_layer(self, name: str, batch: int) -> Tensor:
        """Return the factors and shifts of a layer, (batch, width) or (1, width).

        Args:
            name: Name of the layer.
            batch: Rows of the layer's input.
        """
        modulation = self._modulation
        if modulation is None:
            modulation = self.modulate(self._as_tensor(self.rate))
        if len(modulation) not in (1, batch):
            raise UserError(
                f"layer {name} has {batch} rows for a batch of {len(modulation)}; conditioning on "
                "the rate needs whole batches, and layers whose rows are examples"
            )
        return modulation[:, self.places[name]]

    def _as_tensor(self, rates: float | Tensor) -> Tensor:
        if isinstance(rates, Tensor):
            return rates.reshape(-1)
        return self.knots.new_full((1,), rates)


class _LayerHooks:
    """Forward hooks of a layer. An object and no closure, so that copies of a network stay apart.

    Args:
        conditioning: Conditioning of the network.
        name: Name of the layer.
        layer: The layer.
    """

    def __init__(self, conditioning: RateConditioning, name: str, layer: nn.Module) -> None:
        self.conditioning, self.name = conditioning, name
        self.channels_last = isinstance(layer, nn.Linear)  # else the axis after the batch
        self.outputs, self.inputs = _widths(layer)

    def scale_input(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Scale the channels of the layer's input."""
        (x,) = inputs
        factors = self.conditioning.of_layer(self.name, len(x))[:, 2 * self.outputs :]
        return (x * (1 + _GATE_SPEED * self._align(factors, x)),)

    def modulate_output(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Scale and shift the channels of the layer's output."""
        modulation = self.conditioning.of_layer(self.name, len(output))
        scale, shift = modulation[:, : 2 * self.outputs].chunk(2, 1)
        return output * (1 + self._align(scale, output)) + self._align(shift, output)

    def _align(self, values: Tensor, x: Tensor) -> Tensor:
        """Return values per channel in the shape and type in which they multiply `x`."""
        ones = [1] * (x.dim() - 2)
        shape = (len(values), *ones, -1) if self.channels_last else (len(values), -1, *ones)
        return values.to(x.dtype).view(shape)


def condition_on_rate(
    module: nn.Module, set_points: Sequence[float], features: int = 32
) -> RateConditioning:
    """Condition a network of convolutions and linear layers on the rate, in place.

    The conditioning becomes the submodule `rate_conditioning`. Its weights are trained and saved
    with those of the network.

    >>> conditioning = condition_on_rate(vae, (3.0, 6.0, 12.0, 24.0))
    >>> with conditioning.at(12.0):
    ...     posterior = vae.encode(x)

    Args:
        module: Network. Each row of every layer's output belongs to one example.
        set_points: Set points in nats, evenly spaced on a logarithmic scale.
        features: Width of the small network that reads the rate.

    Raises:
        UserError: If the network has no such layers, or is conditioned already.
    """
    if isinstance(getattr(module, "rate_conditioning", None), RateConditioning):
        raise UserError(f"{type(module).__name__} is conditioned on the rate already")
    if isinstance(module, nn.Sequential):  # would call the conditioning as one of its layers
        raise UserError("an nn.Sequential cannot be conditioned on the rate; put it into a module")
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, _LAYERS)}
    if not layers:
        raise UserError(
            f"{type(module).__name__} has no convolution or linear layer to condition on the rate"
        )
    widths = {name: 2 * _widths(layer)[0] + _widths(layer)[1] for name, layer in layers.items()}
    conditioning = RateConditioning(set_points, widths, features)
    like = next(module.parameters())
    conditioning.to(like.device, like.dtype)
    for name, layer in layers.items():
        hooks = _LayerHooks(conditioning, name, layer)
        layer.register_forward_hook(hooks.modulate_output)
        if hooks.inputs:
            layer.register_forward_pre_hook(hooks.scale_input)
    module.rate_conditioning = conditioning
    return conditioning


def find_conditioning(module: nn.Module) -> RateConditioning | None:
    """Return the rate conditioning of a network, or None."""
    found = getattr(module, "rate_conditioning", None)
    return found if isinstance(found, RateConditioning) else None


def at_rate(module: nn.Module, rate: float | None) -> AbstractContextManager[None]:
    """Run a conditioned network at a rate in nats inside a `with` block. None changes nothing.

    Raises:
        UserError: If the network is not conditioned, or has not learnt this rate.
    """
    if rate is None:
        return nullcontext()
    conditioning = find_conditioning(module)
    if conditioning is None:
        raise UserError(
            f"{type(module).__name__} was trained at one set point, so it takes no rate; "
            "train it with lab.curve"
        )
    return conditioning.at(conditioning.check(rate))


def _widths(layer: nn.Module) -> tuple[int, int]:
    """Return the number of output channels, and of input channels that are scaled."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    assert isinstance(layer.out_channels, int)
    assert isinstance(layer.in_channels, int)
    is_pointwise = all(side == 1 for side in layer.kernel_size)  # type: ignore[union-attr]
    return layer.out_channels, layer.in_channels if is_pointwise else 0
