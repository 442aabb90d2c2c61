"""Settings of a rate-conditioned model: the rates that one network learns."""

import math
from dataclasses import dataclass
from typing import ClassVar

from controlvae.lab.config.validation import require, require_width

MAX_BINS = 256
# The range is wider than asked for: the last weights are a few percent off their set points, and so
# is the KL of held-out examples.
_MARGIN = 1.1


@dataclass(frozen=True)
class RateRange:
    """The rates of a rate-conditioned model. Each example of a batch has one of several set points.

    Attributes:
        low: The lowest rate, in nats.
        high: The highest rate, in nats.
        bins: The number of set points, each with its own weight. They are spaced evenly on a
            logarithmic scale, and the batch is a multiple of them.
        features: The width of the layer that reads the rate.
        ramp: The share of the training in which all set points descend from the highest one to
            their own.
        focus: The lowest and the highest rate that set points cover. Empty is the whole range. A
            branch of a run narrows it around the best rate.
        balance: The exponent p of the shares (1 + β)^-p that set points have in the loss. At 0 the
            gradient is mostly that of low rates, whose β is large.
    """

    type_name: ClassVar[str] = "RateRange"

    low: float = 3.0
    high: float = 24.0
    bins: int = 8
    features: int = 32
    ramp: float = 0.25
    balance: float = 0.5
    focus: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(
            0 < self.low < self.high < math.inf,
            f"rates must be two positive numbers, the lower first, got {self.low:g} and "
            f"{self.high:g}",
        )
        require(2 <= self.bins <= MAX_BINS, f"bins must lie in 2..{MAX_BINS}, got {self.bins}")
        require_width(self, "features")
        require(0 <= self.ramp < 1, f"ramp must lie in [0, 1), got {self.ramp}")
        require(0 <= self.balance <= 1, f"balance must lie in [0, 1], got {self.balance}")
        self._check_focus()

    def _check_focus(self) -> None:
        if self.focus:
            require(
                len(self.focus) == 2 and self.low <= self.focus[0] < self.focus[1] <= self.high,
                f"focus must be two rates within {self.low:g}..{self.high:g}, got {self.focus}",
            )

    @property
    def span(self) -> tuple[float, float]:
        """Lowest and highest rate that the network is trained for now."""
        return (self.focus[0], self.focus[1]) if self.focus else (self.low, self.high)

    @property
    def knots(self) -> tuple[float, ...]:
        """Rates in nats at which the conditioning has parameters of its own."""
        return log_spaced(self.low / _MARGIN, self.high * _MARGIN, self.bins)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest set point."""
        return self.span[0] / _MARGIN, self.span[1] * _MARGIN

    @property
    def set_points(self) -> tuple[float, ...]:
        """Set points of the bins in nats, from low to high."""
        return log_spaced(*self.bounds, self.bins)

    @property
    def middle(self) -> float:
        """Geometric mean of the range."""
        return math.sqrt(self.low * self.high)


def log_spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return numbers from low to high whose ratios are equal."""
    if count == 1:
        return (low,)
    ratio = math.log(high / low) / (count - 1)
    return tuple(low * math.exp(ratio * place) for place in range(count))
