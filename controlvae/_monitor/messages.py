"""Messages that name a fault of a control loop and say what to do."""

import torch

from controlvae._monitor.faults import NO_ANSWER, OUT_OF_REACH, WRONG_DIRECTION
from controlvae._monitor.state import LawTraits, MonitorState, Reading

_DIRECTIONS = (
    'pass direction="inverse" to the law if the quantity grows with its weight',
    'pass direction="direct" to the law if the quantity falls as its weight grows',
)


def describe_runaway(reading: Reading, monitor: MonitorState, traits: LawTraits) -> str:
    """Return one line that says why training stops and what to do.

    Args:
        reading: State of the law, in floats.
        monitor: State of the monitor, in floats.
        traits: Properties of the law.
    """
    fault = describe_fault(reading, monitor, traits)
    return f"stopped, because {fault}; Controller(law, monitor=False) trains on regardless"


def describe_skipped(step: float, reason: str, dtype: torch.dtype | None) -> str:
    """Return one line about measurements that were skipped, with the likely cause.

    Args:
        step: Step of the measurement, or the step up to which there was one.
        reason: What the measurement was, such as "NaN".
        dtype: dtype of the measurement, None if it was a Python number.
    """
    half = "float16 ends at 65,504"
    if dtype is torch.float16:
        cause = f"{half}, so sum the KL in float32: kl.float().sum(1).mean()"
    elif dtype is torch.bfloat16:
        cause = "sum the KL in float32: kl.float().sum(1).mean()"
    else:
        cause = (
            f"a KL summed in half precision overflows ({half}; sum it in float32), and so does the "
            "exponential of a large log variance (clamp it)"
        )
    return (
        f"the measurement of step {step:,.0f} is {reason} and is skipped, so the weight stays; "
        f"stats()['skipped'] counts such steps; likely cause: {cause}"
    )


def describe_fault(reading: Reading, monitor: MonitorState, traits: LawTraits) -> str:
    """Return one line that names the fault of a loop and says what to do.

    Args:
        reading: State of the law, in floats.
        monitor: State of the monitor, in floats.
        traits: Properties of the law.
    """
    fault, other_direction = int(monitor.fault), _DIRECTIONS[int(traits.inverse)]
    measured, target = (
        reading.target + sum(monitor.recent[:4]) / 4,
        f"the target {reading.target:g}",
    )
    weight = f"the weight moved from {monitor.ref_beta:.3g} to {reading.beta:.3g}"
    if fault == WRONG_DIRECTION:
        return (
            f"the measurement moves away from {target}: it is {measured:.4g} at step "
            f"{reading.step:,.0f}, while {weight}; {other_direction}, and check the sign of the loss term"
        )
    if fault == OUT_OF_REACH:
        bound = "beta_max" if monitor.at_bound > 0 else "beta_min"
        return (
            f"{target} is out of reach: the weight is at {bound} = {reading.beta:.3g} and the "
            f"measurement stays at {measured:.4g}; choose a target that can be reached or another "
            f"{bound}, or {other_direction}"
        )
    if fault == NO_ANSWER:
        return (
            f"the measurement does not respond: {weight} and it stays at {measured:.4g}, far from "
            f"{target}; check that the loss uses the weight that step() returns and that the term "
            f"has a gradient, or {other_direction}"
        )
    return (
        f"the weight runs away: {weight} and the measurement stays at {measured:.4g} instead of "
        f"{target}; choose a target that can be reached, or set beta_min and beta_max"
    )
