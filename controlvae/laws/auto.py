"""A law without gains to choose: PI control of log β by the relative error."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import ProportionalFeedback, Target
from controlvae.laws.log_domain import LogDomainFeedback
from controlvae.laws.states import AutoState

# Gains per unit of relative error. The integral gain is divided by the horizon.
_KP, _KI = 2.0, 16.0
# Bounds of the horizon near the set point, in steps.
_MIN_HORIZON, _MAX_HORIZON = 200, 2_000
# Relative error beyond which learning, and not β, limits how fast the KL moves.
_FAR_RELATIVE_ERROR = 0.25
# Horizon beyond that error: this many steps plus the number of steps so far.
_FAR_HORIZON_OFFSET = 800
# The KL is averaged over the horizon divided by this, and over more batches if they are noisy.
_HORIZON_PER_AVERAGE = 20
# Largest standard deviation of the proportional term, in units of log β. Noisier batches are
# averaged for longer.
_MAX_PROPORTIONAL_NOISE = 0.06
_MAX_AVERAGED_BATCHES = 200
# Smallest ratio of the horizon to the number of averaged batches.
_MIN_HORIZON_PER_AVERAGE = 10
# Number of batches over which the variance of measurements is estimated.
_VARIANCE_MEMORY = 100
_TINY_NATS = 1e-12  # avoids a division by zero


@dataclass(frozen=True)
class Auto(LogDomainFeedback, ProportionalFeedback):
    r"""PI control of log β that needs no gains.

    .. math::  \log \beta(t) = \log \beta_0 - 2\,\epsilon(t)
               - \sum_{j \le t} \frac{16}{T(j)}\, \epsilon(j),
               \qquad \epsilon = 2\,\frac{v - \mathrm{KL}}{v + \mathrm{KL}}

    In a linear VAE the KL falls by half a nat per latent in use for every e-fold of β. Its
    logarithm therefore responds to log β with a slope of a few tenths, for all data, networks,
    units and batch sizes. Gains on logarithms carry over from one model to another, and gains on β
    do not. Near the set point ε is the relative error. It stays within ±2 when the code has
    collapsed or exploded.

    The horizon is T = t / 8, between 200 and 2,000 steps. As learning slows down, so does the drift
    of the weight that keeps the KL at its set point, and there is time to average more. The KL is
    averaged over T / 20 batches. If the batches are so noisy that the proportional term alone would
    scatter β by more than 6 %, more batches are averaged and T is at least ten times their number.
    While ε is beyond ±1/4, the code is still forming, or that of an untrained network is still
    being reorganised. Learning then limits the KL, not β, and a fast integral would only wind up,
    so T = 800 + t.

    Use it for images, text and custom models. Do not use it for disentangling, where the slow
    published gains are part of the method: see `PI.paper("disentangling")`.

    Args:
        target: Set point in nats per example, or a schedule.
        reach_in: Constant horizon T that replaces the rule above, 200 steps or more. Use it for a
            KL that should move slowly.
        beta_min: Smallest weight, above zero.
        beta_max: Largest weight.
        beta_init: Initial weight.

    >>> law = Auto(target=18.0)
    >>> state = law.update(law.init(), torch.tensor(0.0))
    >>> round(state.beta.item(), 4)  # the code is empty, so the weight falls at once
    0.0176
    """

    target: Target
    reach_in: int | None = None
    beta_min: float = 1e-6
    beta_max: float = float("inf")
    beta_init: float = 1.0

    state_type = AutoState

    @property
    def ema(self) -> float:  # type: ignore[override]
        """Decay of the moving average at the first step; later ones are given by `decay`."""
        return 1 - _HORIZON_PER_AVERAGE / (self.reach_in or _MIN_HORIZON)

    def __post_init__(self) -> None:
        if self.reach_in is not None and not _MIN_HORIZON <= self.reach_in < 1e9:
            raise ValueError(
                f"reach_in must be at least {_MIN_HORIZON} steps and below 1e9, got {self.reach_in}"
            )
        self.check()

    def update(self, state: AutoState, measured: Value, xp: Backend = TENSORS) -> AutoState:
        now = self.sense(state, measured, xp)
        error = _relative_error(now.target, now.measured)
        horizon = self._horizon(state, xp)
        if self.reach_in is None:
            longer = _MIN_HORIZON_PER_AVERAGE * self._averaged_batches(state, xp)
            near_horizon = xp.where(longer > horizon, longer, horizon)
            is_far = abs(error) > _FAR_RELATIVE_ERROR
            horizon = xp.where(is_far, _FAR_HORIZON_OFFSET + state.measured_count, near_horizon)
        p = self.proportional(now.target, now.measured, xp)
        unclamped, i = self.combine(state, now, xp, state.integral - _KI / horizon * error, p)
        variance = self._relative_variance(state, measured, error, xp)
        return self.commit(state, now, unclamped, (i, p, measured, variance), xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return -_KP * _relative_error(target, measured)

    def decay(self, state: AutoState, xp: Backend) -> Value:
        return 1 - 1 / self._averaged_batches(state, xp)

    def _relative_variance(
        self, state: AutoState, measured: Value, error: Value, xp: Backend
    ) -> Value:
        """Return the running estimate of the relative variance of measurements near the target."""
        last = state.last_measurement
        difference = 2 * (measured - last) / (abs(measured) + abs(last) + _TINY_NATS)
        # Half the squared difference of neighbours is a variance to which drift adds nothing.
        change = difference * difference / 2 - state.relative_variance
        estimate = state.relative_variance + change / _VARIANCE_MEMORY
        counts = (state.measured_count > 0) & (abs(error) <= _FAR_RELATIVE_ERROR)
        return xp.where(counts, estimate, state.relative_variance)

    def _averaged_batches(self, state: AutoState, xp: Backend) -> Value:
        """Return over how many batches the next measurement is averaged."""
        few = self._horizon(state, xp) / _HORIZON_PER_AVERAGE
        if self.reach_in is not None:
            return few
        # A moving average over n batches has 1 / 2n of their variance.
        needed = _KP**2 * state.relative_variance / (2 * _MAX_PROPORTIONAL_NOISE**2)
        many = xp.clip(needed, 0, _MAX_AVERAGED_BATCHES)
        is_near = abs(_relative_error(state.target, state.measured)) <= _FAR_RELATIVE_ERROR
        return xp.where(is_near & (many > few), many, few)

    def _horizon(self, state: AutoState, xp: Backend) -> Value:
        if self.reach_in is not None:
            return self.reach_in
        return xp.clip(state.measured_count / 8, _MIN_HORIZON, _MAX_HORIZON)


def _relative_error(target: Value, measured: Value) -> Value:
    """Return 2 tanh(log(target / measured) / 2), computed without the logarithm.

    Measurements of zero or below give the largest error, 2.
    """
    return 2 * (target - measured) / (target + abs(measured))
