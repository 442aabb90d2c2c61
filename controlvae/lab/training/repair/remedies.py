"""Remedies: the one setting that is changed for a symptom."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from controlvae.lab.config import Adam, CustomModel, CustomOptimiser, Experiment
from controlvae.lab.training.repair.symptoms import Symptom
from controlvae.laws import Constant, Points, Schedule

_RATE_FACTOR = 0.1
_CLIP = 1.0


@dataclass(frozen=True)
class Remedy:
    """Settings of a run from now on, and what is different about them."""

    experiment: Experiment
    text: str


def choose_remedy(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    """Return the remedy of a symptom, or None if there is none.

    Args:
        symptom: What went wrong.
        experiment: Settings of the run until now.
    """
    remedies: dict[str, Callable[[Symptom, Experiment], Remedy | None]] = {
        "corrupt examples": _skip_examples,
        "half precision": _raise_precision,
        "wrong units": _scale_reconstruction,
        "collapse": _lower_bound,
    }
    return remedies.get(symptom.kind, _lower_rate)(symptom, experiment)


def _skip_examples(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    skipped = sorted({*experiment.training.skip, *symptom.examples})
    added = len(skipped) - len(experiment.training.skip)
    if not added:
        return None
    training = replace(experiment.training, skip=tuple(skipped))
    examples = "1 example is" if added == 1 else f"{added:,} examples are"
    return Remedy(replace(experiment, training=training), f"{examples} skipped (training.skip)")


def _raise_precision(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    if experiment.training.half == "off":
        return _lower_rate(symptom, experiment)
    training = replace(experiment.training, half="off")
    text = "the model computes in float32 (training.half)"
    return Remedy(replace(experiment, training=training), text)


def _scale_reconstruction(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    model = experiment.model
    if not isinstance(model, CustomModel):
        return None
    scale = model.reconstruction_scale * symptom.factor
    text = f"the reconstruction is multiplied by {symptom.factor:g} (model.reconstruction_scale)"
    return Remedy(replace(experiment, model=replace(model, reconstruction_scale=scale)), text)


def _lower_bound(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    law: Any = experiment.control
    if not hasattr(law, "beta_min") or law.bounds[0] <= 0:
        return None
    text = f"the lower bound of β is 0 instead of {law.bounds[0]:g} (control.beta_min)"
    control = replace(law, beta_min=0.0)
    return Remedy(replace(experiment, control=control), text)


def _lower_rate(symptom: Symptom, experiment: Experiment) -> Remedy | None:
    """Divide the learning rate by ten, or clip the gradient if the user's code sets the rate."""
    optimiser = experiment.optimiser
    if isinstance(optimiser, CustomOptimiser):
        if optimiser.rate is not None:
            lowered = replace(optimiser, rate=_RATE_FACTOR * optimiser.rate)
            return Remedy(replace(experiment, optimiser=lowered), _describe_rate(lowered.rate))
        return _clip_gradients(experiment)
    rate = scale_rate(optimiser.rate, _RATE_FACTOR)
    if rate is None:
        return _clip_gradients(experiment)
    lowered_adam = replace(optimiser, rate=rate)
    return Remedy(replace(experiment, optimiser=lowered_adam), _describe_rate(rate))


def _describe_rate(rate: float | Schedule | None) -> str:
    value = f"{rate:.3g}" if isinstance(rate, float) else "a tenth at every step"
    return f"the learning rate is {value} (optimiser.rate)"


def _clip_gradients(experiment: Experiment) -> Remedy | None:
    optimiser: Adam | CustomOptimiser = experiment.optimiser
    if optimiser.clip is not None and optimiser.clip <= _CLIP:
        return None
    clipped = replace(experiment, optimiser=replace(optimiser, clip=_CLIP))
    return Remedy(clipped, f"gradients are clipped at a norm of {_CLIP:g} (optimiser.clip)")


def scale_rate(rate: float | Schedule, factor: float) -> float | Schedule | None:
    """Return a learning rate times a factor, or None for a schedule that cannot be scaled.

    Args:
        rate: A number or a schedule.
        factor: Positive factor.
    """
    match rate:
        case Constant():
            return replace(rate, value=factor * rate.value)
        case Points():
            return replace(rate, values=tuple(factor * value for value in rate.values))
        case Schedule():
            if not hasattr(rate, "start") or not hasattr(rate, "stop"):
                return None
            scaled = {"start": factor * rate.start, "stop": factor * rate.stop}
            if hasattr(rate, "step"):
                scaled["step"] = factor * rate.step
            return replace(rate, **scaled)  # type: ignore[type-var]
    return factor * rate
