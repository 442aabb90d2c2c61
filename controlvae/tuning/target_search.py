"""Where a set point may lie for a model at hand: short trainings at fixed weights, and what to make of their KL."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD
from controlvae.laws.base import Feedback, Law
from controlvae.tuning.rules import Advice, advise

_STILL = 0.05  # of a KL: less over the second half of a training is noise, or too slow to matter to a set point
_BEYOND = 100  # times the upper end of the paper's band: no code that is of use has so many nats


class ProbeResult(NamedTuple):
    """The KL of a training at a fixed weight, nats per example: means over tenths of its steps."""

    kl: float  # of the last tenth
    halfway: float  # of the tenth before half-way

    @property
    def moves(self) -> bool:
        """Whether it is still on its way."""
        return abs(self.kl - self.halfway) > max(
            _STILL * max(self.kl, self.halfway), COLLAPSE_THRESHOLD
        )

    def __str__(self) -> str:
        way = "rising" if self.kl > self.halfway else "falling"
        return f"still {way}, from {self.halfway:,.1f} to {self.kl:,.1f} nats over the second half of the steps"


def measure_target(
    train: Callable[[float], float | Sequence[float]],
    *,
    law: Law | None = None,
    beta_min: float = 0.0,
    beta_max: float = 1.0,
) -> Advice:
    """A set point for a training function of one's own: trains two or three times, and advises.

    Args:
        train: trains a fresh model with this fixed weight before the KL, for a short budget, the same each time.
            Returns the KL it ends with, or that of all its steps, of which the last tenth counts; nats per example.
            Only from all of them can a KL that is still moving be told, and a warning says so.
        law: the law that will hold the set point, whose bounds say what is within reach: `Auto(1.0)`, whatever its
            target.
        beta_min, beta_max: those bounds, where no law is given; these are `PI`'s.

    >>> print(measure_target(lambda weight: 12.0 * (weight + 0.1) ** -0.4))
    begin with a target of 21 nats
      the plain VAE's KL  11.6 nats
      the paper's band    11.6 to 23.4
      within reach        11.6 to 30.1
      four fifths up the paper's band, which is a heuristic: its theorem bounds the gain from above
    """
    if law is not None and (not isinstance(law, Feedback) or law.controls_reconstruction):
        raise TypeError(f"law must be one that holds the KL, such as Auto(1.0), got {law!r}")
    low, high = (beta_min, beta_max) if law is None else law.bounds
    readings = {weight: _reading(train(weight)) for weight in probe_weights(low, high)}
    advice = advise_from(readings, high)
    for doubt in doubts(readings, advice):
        warnings.warn(f"{doubt}; train for longer", stacklevel=2)
    return advice


def probe_weights(beta_min: float, beta_max: float) -> list[float]:
    """The weights to train at: the plain VAE's, and the bounds of the law."""
    if not 0 <= beta_min < 1 <= beta_max:
        raise ValueError(
            f"beta_min must lie in [0, 1) and beta_max from 1 up, got {beta_min} and {beta_max}: the paper's band "
            f"begins at the KL of a weight of one"
        )
    return [1.0, beta_min, *([beta_max] if 1 < beta_max < math.inf else [])]


def advise_from(readings: Mapping[float, ProbeResult], beta_max: float) -> Advice:
    """Advice from the KL measured at each of `probe_weights`; a weight without an upper bound can bring it to zero."""
    kls = {weight: reading.kl for weight, reading in readings.items()}
    for weight, kl in kls.items():
        if not math.isfinite(kl):
            raise ValueError(
                f"training with a weight of {weight:g} ended with a KL of {kl}: it diverged; take a smaller learning "
                f"rate, or clamp the log-variances"
            )
    own = kls[1.0]
    lowest = 0.0 if math.isinf(beta_max) else kls[beta_max]
    advice = advise(own, min(lowest, own), max(own, kls[min(kls)]))
    if kls[min(kls)] <= own:
        raise ValueError(
            f"the KL did not rise as the weight fell, from {own:.3g} at 1 to {kls[min(kls)]:.3g} at {min(kls):g}: does "
            f"the training use the weight it is given, and for long enough to tell?"
        )
    return advice


def doubts(readings: Mapping[float, ProbeResult], advice: Advice) -> list[str]:
    """What speaks against advice from these readings.

    At the least weight a KL may wander for ever, and that matters only where it keeps the set point down; one that has
    halved is still that of an untrained network.
    """
    own, least = readings[1.0], min(readings)
    most, lines = readings[least], []
    if own.moves:
        lines.append(f"the plain VAE's KL is {own}, and the set point moves with it")
    upper = "the upper end of what is within reach is doubtful"
    if most.kl < most.halfway / 2 or (most.moves and most.kl < advice.band.high):
        lines.append(f"{upper}: at a weight of {least:g} the KL is {most}")
    elif most.kl > _BEYOND * advice.band.high:
        lines.append(
            f"{upper}: {most.kl:,.1f} nats are more than {_BEYOND} times the end of the paper's band"
        )
    return lines


def _reading(kls: float | Sequence[float]) -> ProbeResult:
    if kls is None:
        raise ValueError(
            "train returned None; it must return the KL it ended with, or those of all steps"
        )
    found = kls.tolist() if hasattr(kls, "tolist") else kls
    steps = list(found) if isinstance(found, Iterable) else [found]
    if not steps:
        raise ValueError("train returned no KL; it must return the last one, or those of all steps")
    tenth, half = max(1, len(steps) // 10), max(1, len(steps) // 2)
    try:
        means = [
            sum(float(torch.as_tensor(kl).detach()) for kl in part) / tenth
            for part in (steps[-tenth:], steps[half - tenth : half])
        ]
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"train must return the KL it ended with, or those of all steps, got {steps[-1]!r}"
        ) from None
    return ProbeResult(*means)
