"""Search for a set point: short trainings at fixed weights measure the reachable KL."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD
from controlvae.laws.base import Feedback, Law
from controlvae.tuning.advice import Advice, advise

# Relative change of the KL over the second half of a training that counts as settled. It is noise,
# or too slow to matter for a set point.
_SETTLED_CHANGE = 0.05
# Multiple of the upper end of the paper's range. No useful code has that many nats.
_IMPLAUSIBLE_FACTOR = 100


class ProbeResult(NamedTuple):
    """KL of a training at a fixed weight in nats per example, averaged over tenths of its steps."""

    kl: float  # last tenth
    halfway: float  # last tenth of the first half

    @property
    def is_moving(self) -> bool:
        """True if the KL had not settled by the end."""
        tolerance = max(_SETTLED_CHANGE * max(self.kl, self.halfway), COLLAPSE_THRESHOLD)
        return abs(self.kl - self.halfway) > tolerance

    def __str__(self) -> str:
        direction = "rising" if self.kl > self.halfway else "falling"
        return (
            f"still {direction}, from {self.halfway:,.1f} to {self.kl:,.1f} nats over the second "
            "half of the steps"
        )


def measure_target(
    train: Callable[[float], float | Sequence[float]],
    *,
    law: Law | None = None,
    beta_min: float = 0.0,
    beta_max: float = 1.0,
    purpose: str = "reconstruction",
    latents: int | None = None,
) -> Advice:
    """Return a set point for a user-supplied training function, after two or three trainings.

    Args:
        train: Function that trains a new model with a fixed KL weight for a short, constant budget.
            It returns the final KL, or the KL of every step, in nats per example. The last tenth
            counts. With all steps, a warning is given if the KL has not settled.
        law: Law that will control the KL. Its bounds determine the reachable range; its target is
            ignored, so `Auto(1.0)` will do.
        beta_min: Smallest weight if there is no law. The default is that of `PI`.
        beta_max: Largest weight if there is no law. The default is that of `PI`.
        purpose: What the target is for: `reconstruction`, `no-collapse`, `disentangling`, `rate`
            or `elbo`.
        latents: Number of latents that the plain VAE uses. With it, the advice has a cost in ELBO.

    >>> print(measure_target(lambda weight: 12.0 * (weight + 0.1) ** -0.4))
    begin with a target of 21 nats
      the plain VAE's KL  11.6 nats
      the paper's band    11.6 to 23.4
      within reach        11.6 to 30.1
      four fifths up the paper's band, which is a heuristic: its theorem bounds the gain from above
    """
    if law is not None and (not isinstance(law, Feedback) or law.controls_reconstruction):
        raise TypeError(f"law must control the KL, such as Auto(1.0), got {law!r}")
    low, high = (beta_min, beta_max) if law is None else law.bounds
    results = {weight: _summarise(train(weight)) for weight in probe_weights(low, high)}
    advice = advise_from_probes(results, high, purpose, latents)
    for doubt in find_doubts(results, advice):
        warnings.warn(f"{doubt}; train for longer", stacklevel=2)
    return advice


def probe_weights(beta_min: float, beta_max: float) -> list[float]:
    """Return the weights to train at: that of the plain VAE and the bounds of the law."""
    if not 0 <= beta_min < 1 <= beta_max:
        raise ValueError(
            "beta_min must lie in [0, 1) and beta_max must be at least 1, got "
            f"beta_min={beta_min}, beta_max={beta_max}: the paper's range begins at the KL of a "
            "weight of one"
        )
    return [1.0, beta_min, *([beta_max] if 1 < beta_max < math.inf else [])]


def advise_from_probes(
    results: Mapping[float, ProbeResult],
    beta_max: float,
    purpose: str = "reconstruction",
    latents: int | None = None,
) -> Advice:
    """Return advice from the KL measured at each of `probe_weights`.

    Args:
        results: Probe result of each weight.
        beta_max: Largest weight of the law. An unbounded weight can reach a KL of zero.
        purpose: What the target is for, as for `advise`.
        latents: Number of latents that the plain VAE uses, if it was measured.
    """
    kls = {weight: result.kl for weight, result in results.items()}
    for weight, kl in kls.items():
        if not math.isfinite(kl):
            raise ValueError(
                f"the KL must be finite, got {kl} at a weight of {weight:g}: training diverged; "
                "use a smaller learning rate, or clamp the log-variances"
            )
    kl_vae, kl_at_min = kls[1.0], kls[min(kls)]
    lowest = 0.0 if math.isinf(beta_max) else kls[beta_max]
    reachable = min(lowest, kl_vae), max(kl_vae, kl_at_min)
    advice = advise(kl_vae, *reachable, purpose=purpose, latents=latents)
    if kl_at_min <= kl_vae:
        raise ValueError(
            f"the KL must rise as the weight falls, got {kl_vae:.3g} at 1 and {kl_at_min:.3g} at "
            f"{min(kls):g}: check that train uses its weight, and train for longer"
        )
    return advice


def find_doubts(results: Mapping[float, ProbeResult], advice: Advice) -> list[str]:
    """Return reasons to doubt the advice.

    At the smallest weight a KL may drift for ever. That matters only if it limits the set point. A
    KL that has halved there still includes the transient of an untrained network.

    Args:
        results: Probe result of each weight.
        advice: Advice that was derived from them.
    """
    plain, smallest = results[1.0], min(results)
    free, doubts = results[smallest], []
    if plain.is_moving:
        doubts.append(f"the plain VAE's KL is {plain}, and the set point moves with it")
    upper = "the upper end of the reachable range is doubtful"
    if free.kl < free.halfway / 2 or (free.is_moving and free.kl < advice.band.high):
        doubts.append(f"{upper}: at a weight of {smallest:g} the KL is {free}")
    elif free.kl > _IMPLAUSIBLE_FACTOR * advice.band.high:
        doubts.append(
            f"{upper}: {free.kl:,.1f} nats are more than {_IMPLAUSIBLE_FACTOR} times the end of "
            "the paper's band"
        )
    return doubts


def _summarise(kls: float | Sequence[float]) -> ProbeResult:
    """Return the mean KL of the last tenth of the steps, and of the last tenth before half-way."""
    expected = "train must return the final KL, or the KL of every step"
    if kls is None:
        raise ValueError(f"{expected}, got None")
    values = kls.tolist() if hasattr(kls, "tolist") else kls
    steps = list(values) if isinstance(values, Iterable) else [values]
    if not steps:
        raise ValueError(f"{expected}, got an empty sequence")
    tenth, half = max(1, len(steps) // 10), max(1, len(steps) // 2)
    try:
        means = [
            sum(float(torch.as_tensor(kl).detach()) for kl in part) / tenth
            for part in (steps[-tenth:], steps[half - tenth : half])
        ]
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{expected}, got {steps[-1]!r}") from None
    return ProbeResult(*means)
