"""A law without gains to choose: PI action on the logarithm of the weight, from the relative error."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import State, Target
from controlvae.laws.log_domain import Logarithmic

_KP, _KI = 2.0, 16.0  # gains per unit of relative error; the integral's is divided by the horizon
_SHORTEST, _LONGEST = 200, 2_000  # horizons near the set point, in steps
_FAR = 0.25  # the relative error beyond which learning sets the pace, not the weight
_CAUTION = 800  # the horizon when far: so many steps beyond those taken so far
_AVERAGED = 20  # the KL is averaged over the horizon divided by this; over more batches where they are noisy
_STILL = (
    0.06  # the most that P may scatter log β: noisy batches are averaged until it scatters less
)
_MOST = 200  # batches that are averaged at most
_SLOWER = 10  # the horizon is at least so many times as long as that average
_MEMORY = 100  # batches behind the measured spread
_NOTHING = 1e-12  # nats, so that nothing is divided by zero


@dataclass(frozen=True)
class Auto(Logarithmic):
    r"""Brings the KL to its set point about as soon as the network can follow, and keeps it there.

    .. math::  \log \beta(t) = \log \beta_0 - 2\,\epsilon(t) - \sum_{j \le t} \frac{16}{T(j)}\, \epsilon(j),
               \qquad \epsilon = 2\,\frac{v - \mathrm{KL}}{v + \mathrm{KL}}

    In a linear VAE the KL falls by half a nat per latent in use for every e-fold of β, so its logarithm answers that of
    β with a slope of a few tenths whatever data, network, units and batch; gains on logarithms therefore carry over,
    where gains on β itself do not. ε is the relative error near the set point, and stays within 2 when the code has
    collapsed or burst.

    The horizon is T = t / 8 between 200 and 2,000: as learning slows down, so does the drift of the weight that holds
    the KL, and there is time to average more. The KL is averaged over T / 20 batches; over more, and T is at least ten
    times as many, where batches differ so much that P alone would scatter β by over 6 %. While ε is beyond ± 1/4 a code
    is still to form, or that of an untrained network to be put in order. Learning holds the KL back then, not β, and a
    quick integral would only wind up: T = 800 + t.

    For images, text and models of one's own. Not for disentangling, where the slow published gains are part of the
    method: see `PI.paper("disentangling")`.

    Args:
        target: the set point in nats per example, or a ramp.
        reach_in: a T of one's own that stays the same, 200 steps or more; for a KL that is to move slowly.
        beta_min: the least weight, above zero.
        beta_max: the largest weight.
        beta_init: the weight to start around.

    >>> law = Auto(target=18.0)
    >>> round(law.update(law.init(), torch.tensor(0.0)).beta.item(), 4)  # no code at all: the weight goes down at once
    0.0176
    """

    target: Target
    reach_in: int | None = None
    beta_min: float = 1e-6
    beta_max: float = float("inf")
    beta_init: float = 1.0

    @property
    def ema(self) -> float:  # type: ignore[override]
        """The share of the past at first; from then on it is what `decay` says."""
        return 1 - _AVERAGED / (self.reach_in or _SHORTEST)

    def __post_init__(self) -> None:
        if self.reach_in is not None and not _SHORTEST <= self.reach_in < 1e9:
            raise ValueError(
                f"reach_in must be {_SHORTEST} steps or more, and below 1e9, got {self.reach_in}"
            )
        self.check()

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        error = _relative(now.target, now.measured)
        horizon, far = self._horizon(state, xp), abs(error) > _FAR
        if self.reach_in is None:
            longer = _SLOWER * self._batches(state, xp)
            horizon = xp.where(
                far, _CAUTION + state.seen, xp.where(longer > horizon, longer, horizon)
            )
        p = self.proportional(now.target, now.measured, xp)
        after = self.actuate(state, now, p, state.i - _KI / horizon * error, 0 * p, xp)
        # Half the square of a difference: a variance that no drift of the KL adds to.
        scatter = 2 * (measured - state.last) / (abs(measured) + abs(state.last) + _NOTHING)
        spread = state.spread + (scatter * scatter / 2 - state.spread) / _MEMORY
        counts = now.usable & (state.seen > 0) & (abs(error) <= _FAR)
        last = xp.where(now.usable, measured, state.last)
        return State(*after[:-2], last, xp.where(counts, spread, state.spread))

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return -_KP * _relative(target, measured)

    def decay(self, state: State, xp: Backend) -> Value:
        return 1 - 1 / self._batches(state, xp)

    def _batches(self, state: State, xp: Backend) -> Value:
        """How many batches the next measurement is averaged over, by what is known before it."""
        few = self._horizon(state, xp) / _AVERAGED
        if self.reach_in is not None:
            return few
        # The mean of n in a moving average has 1 / 2n of their variance.
        many = xp.clip(_KP**2 * state.spread / (2 * _STILL**2), 0, _MOST)
        near = abs(_relative(state.target, state.measured)) <= _FAR
        return xp.where(near & (many > few), many, few)

    def _horizon(self, state: State, xp: Backend) -> Value:
        return (
            xp.clip(state.seen / 8, _SHORTEST, _LONGEST) if self.reach_in is None else self.reach_in
        )


def _relative(target: Value, measured: Value) -> Value:
    """2 tanh(log(target / measured) / 2), without the logarithm: zero or below is as far as it gets."""
    return 2 * (target - measured) / (target + abs(measured))
