"""Distance of a run from its target over the last tenth of its steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlvae.lab.runs.folder import mean_of_last_tenth

TOLERANCE = 0.05  # of a target, as a relative error
_NOISY_TOLERANCE = 0.1  # of a target below the noise of its estimate


@dataclass(frozen=True)
class TargetError:
    """Means over the last tenth of the steps of a run with a target."""

    mean: float  # of the controlled term, nats
    target: float  # nats
    saturated: float | None  # share of the steps with β at a bound; None in older logs
    noise: float = 0.0  # two standard errors of the mean of a target below its noise

    @property
    def relative(self) -> float:
        """Signed error as a fraction of the target; infinite for a missed target of zero."""
        difference = self.mean - self.target
        if difference == 0:
            return 0.0
        return difference / abs(self.target) if self.target else math.copysign(math.inf, difference)

    @property
    def is_small(self) -> bool:
        """True if the mean is within 5 % of the target."""
        return abs(self.mean - self.target) <= TOLERANCE * abs(self.target)


def measure_target_error(
    records: Sequence[Mapping[str, Any]], controlled: str
) -> TargetError | None:
    """Measure how far a run ends from its target.

    Args:
        records: The log of the run.
        controlled: Log column that the target refers to.

    Returns:
        The error, or None for a run without a log, without a target or without the column.
    """
    if not records or not records[-1].get("target") or controlled not in records[-1]:
        return None
    targeted = [record for record in records if record.get("target") is not None]
    last = records[-1]
    mean, target = mean_of_last_tenth(records, controlled), mean_of_last_tenth(targeted, "target")
    saturated = mean_of_last_tenth(records, "saturated") if "saturated" in last else None
    noise = 0.0
    if last.get(f"{controlled}_sd", -math.inf) > last["target"] and controlled == "tc":
        # The mean over a tenth of the steps has sqrt(steps / 10) times less noise than a step.
        noise = 2 * last["tc_sd"] / math.sqrt(max(1.0, last["step"] / 10))
    return TargetError(mean, target, saturated, noise)


def is_on_target(error: TargetError) -> bool:
    """Return True if a run ends on its target, allowing for the noise of its estimate."""
    if error.noise:
        tolerance = max(_NOISY_TOLERANCE * abs(error.target), error.noise)
        return abs(error.mean - error.target) <= tolerance
    return error.is_small
