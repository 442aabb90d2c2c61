"""Certificate of a control loop: settled or not, at which mean, and how fast it could have been."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from controlvae._monitor.blocks import SETTLED_BLOCKS, band_width
from controlvae._monitor.faults import BOUND_BLOCKS
from controlvae._monitor.loop import LoopRecord
from controlvae._monitor.messages import describe_fault
from controlvae._monitor.state import BLOCK_STEPS
from controlvae.laws.backend import FLOATS

__all__ = ["Certificate", "speed_limit"]

# A limit of the speed, or pairs of a measurement and the limit there.
SpeedLimit = float | Tensor | Sequence[tuple[Any, Any]]

# Steps since settling, divided by those before, from which the approach no longer affects the mean.
_SETTLED_PER_APPROACH = 2.0
# Fewest means of an interval, and the 97.5 % quantile of Student's t by degrees of freedom.
_MIN_MEANS = 8
_T_QUANTILES = {3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646}


@dataclass(frozen=True)
class Certificate:
    """Statement about a control loop; `str()` gives it in plain sentences.

    The interval covers the long-run mean of the measurement in 95 % of runs, whatever the
    autocorrelation of its noise. It comes from the means of every other of 8 to 15 equal stretches
    since the loop settled. Integral action gives back in one stretch what it took in the one
    before. Neighbouring means are therefore not independent, and an interval of all of them would
    cover in nearly all runs. The approach may still show in the first stretch, which is not used.
    For the same reason there is an interval only after the loop has been settled for 200 steps and
    for twice as long as it took to settle.
    """

    settled: bool  # within 5 % of the target, or of its scale, and still there
    since: int | None  # step at which the measurement entered that band
    mean: float | None  # mean measurement since then; of the last 200 steps if not settled
    low: float | None  # lower end of the 95 % interval, or None: see above
    high: float | None  # upper end
    target: float | None  # None for an open-loop law
    error: float | None  # mean - target
    speed_limit: float | None  # least number of steps in which the target could be reached
    verdict: str  # plain sentences
    bound: Literal["beta_min", "beta_max"] | None  # bound that is in the way of the target
    reachable: float | None  # measurement at that bound

    def __str__(self) -> str:
        return self.verdict


def speed_limit(kl: Tensor, parameters: Iterable[Tensor], lr: float) -> Tensor:
    r"""Return the most that a quantity can change in one step of Adam.

    .. math::  |\Delta \mathrm{KL}| \le \eta\, \|\partial \mathrm{KL} / \partial\theta\|_1

    Adam moves each parameter by about the learning rate η at most, whatever the weights of the loss
    terms. To first order, no law can therefore move the KL faster. The assumptions: the steps are
    so small that the gradient describes them; no weight decay; and gradients that do not arrive in
    rare bursts, for which Adam's steps may be up to :math:`(1 - b_1) / \sqrt{1 - b_2}`, about three
    times as large. SGD has no such limit.

    The call takes one more backward pass through the quantity, so make it now and then. It does not
    touch the gradients of the parameters and does not wait for the device.

    Args:
        kl: Controlled quantity of a batch, with its graph.
        parameters: Parameters that the optimiser moves.
        lr: Learning rate.

    >>> weight = torch.tensor([1.0, -2.0], requires_grad=True)
    >>> speed_limit(weight.square().sum(), [weight], lr=1e-3)  # 0.001 * (2 + 4)
    tensor(0.0060)
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise ValueError("parameters must contain a tensor that requires gradients, got none")
    gradients = torch.autograd.grad(kl, trained, retain_graph=True, allow_unused=True)
    norms = [gradient.abs().sum() for gradient in gradients if gradient is not None]
    total = torch.stack([norm.to(kl.device) for norm in norms]).sum() if norms else 0.0 * kl
    return lr * total.detach()


def make_certificate(
    record: LoopRecord, limit: SpeedLimit | None = None, unit: str = ""
) -> Certificate:
    """Return the certificate of a loop.

    Args:
        record: State of the loop in floats.
        limit: Speed limit, or pairs of a measurement and its limit.
        unit: Unit of the measurement for the sentences, such as "nats".
    """
    reading, _, monitor, traits = record
    if not traits.closed_loop:
        return _nothing_to_certify("The law is open-loop: it has no target to hold.", None)
    target = reading.target
    if monitor.blocks == 0:
        return _nothing_to_certify(
            f"Too early to tell: {BLOCK_STEPS} steps are needed for a first mean.", target
        )
    band = band_width(target, monitor.peak, monitor.noise, FLOATS)
    deviation, half = _steady_deviation(record)
    violation = 0.0 if deviation * traits.one_sided < 0 else abs(deviation)
    settled = monitor.in_band >= SETTLED_BLOCKS and violation <= band + (half or 0.0)
    if not settled:
        recent = monitor.recent[: int(monitor.blocks)]
        deviation, half = sum(recent) / len(recent), None
    mean = target + deviation
    bound: Literal["beta_min", "beta_max"] | None = None
    if not settled and abs(monitor.at_bound) >= BOUND_BLOCKS:
        bound = "beta_max" if monitor.at_bound > 0 else "beta_min"
    least = None if limit is None else _least_steps(limit, monitor.first, target, band)
    return Certificate(
        settled=settled,
        since=int(monitor.since) if settled else None,
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        target=target,
        error=deviation,
        speed_limit=least,
        verdict=_describe(record, settled, mean, half, bound, least, unit),
        bound=bound,
        reachable=mean if bound else None,
    )


def count_skipped(record: LoopRecord) -> float:
    """Return the number of unusable measurements of a loop."""
    _, sums, monitor, _ = record
    return float(monitor.skipped + sums.block_steps - sums.block_usable)


def _nothing_to_certify(verdict: str, target: float | None) -> Certificate:
    return Certificate(False, None, None, None, None, target, None, None, verdict, None, None)


def _steady_deviation(record: LoopRecord) -> tuple[float, float | None]:
    """Return the mean deviation since the loop settled and half the width of its interval."""
    monitor = record.monitor
    count = int(monitor.mean_count)
    approach, settled = monitor.since - monitor.base_step, record.reading.step - monitor.since
    if count < _MIN_MEANS or settled < _SETTLED_PER_APPROACH * approach:
        blocks = count * monitor.mean_length + monitor.part_count
        total = sum(monitor.means[:count]) * monitor.mean_length + monitor.part_sum
        return total / max(blocks, 1.0), None
    means = monitor.means[1:count:2]
    mean = sum(means) / len(means)
    variance = sum((each - mean) ** 2 for each in means) / (len(means) - 1)
    return mean, _T_QUANTILES[len(means) - 1] * math.sqrt(variance / len(means))


def _least_steps(limit: SpeedLimit, start: float, target: float, band: float) -> float:
    """Return the integral of dKL / limit from the start to the edge of the band."""
    if isinstance(limit, Sequence):
        pairs = [(float(measured), float(each)) for measured, each in limit]
        if not pairs:
            raise ValueError("speed_limit must have at least one pair, got none")
        start = pairs[0][0]
    else:
        pairs = [(start, float(limit))]
    if not all(each >= 0 for _, each in pairs):
        raise ValueError(f"speed_limit must be zero or positive, got {limit}")
    distance = max(0.0, abs(target - start) - band)
    end = start + math.copysign(distance, target - start)
    low, high = min(start, end), max(start, end)
    knots = [low, *(measured for measured, _ in sorted(pairs) if low < measured < high), high]
    slowness = [_interpolate(sorted(pairs), knot) for knot in knots]
    return sum(
        (right - left) * (first + second) / 2
        for left, right, first, second in zip(
            knots, knots[1:], slowness, slowness[1:], strict=False
        )
    )


def _interpolate(pairs: Sequence[tuple[float, float]], measured: float) -> float:
    """Return the steps per unit at a measurement, constant beyond the first and the last pair."""
    slow = [(each, 1 / limit if limit > 0 else math.inf) for each, limit in pairs]
    below = [pair for pair in slow if pair[0] <= measured]
    above = [pair for pair in slow if pair[0] >= measured]
    if not below or not above:
        return (above or below)[0 if above else -1][1]
    (left, first), (right, second) = below[-1], above[0]
    share = (measured - left) / (right - left) if right > left else 0.0
    return first if share == 0 else (1 - share) * first + share * second


def _describe(
    record: LoopRecord,
    settled: bool,
    mean: float,
    half: float | None,
    bound: str | None,
    least: float | None,
    unit: str,
) -> str:
    reading, _, monitor, traits = record
    unit = f" {unit}" if unit else ""

    def number(value: float) -> str:
        if not half:
            return f"{value:.4g}"
        return f"{value:.{min(8, max(0, -math.floor(math.log10(half))))}f}"

    side = {1.0: "at most ", -1.0: "at least "}.get(traits.one_sided, "")
    target = f"target {side}{reading.target:g}"
    value = f"{number(mean)}{unit}"
    if half is not None:
        value += f" (95 % interval {number(mean - half)} to {number(mean + half)})"
    if settled:
        sentences = [f"Settled since step {monitor.since:,.0f}: {value}, {target}."]
    else:
        sentences = [f"Not settled at step {reading.step:,.0f}: {value}, {target}."]
    if bound:
        sentences.append(
            f"The weight is at {bound} = {reading.beta:.3g}; {number(mean)}{unit} is what can be "
            "reached there."
        )
    elif not settled and monitor.fault:
        fault = describe_fault(reading, monitor, traits)
        sentences.append(f"{fault[0].upper()}{fault[1:]}.")
    if least is not None:
        sentences.append(_describe_speed(least, settled, monitor.since - monitor.base_step))
    return " ".join(sentences)


def _describe_speed(least: float, settled: bool, taken: float) -> str:
    sentence = f"The optimiser's speed limit allows no fewer than {least:,.0f} steps"
    if settled and 0 < least < math.inf and taken > 0:
        return f"{sentence}; it took {taken:,.0f}, {taken / least:.1f} times as many."
    return f"{sentence}."
