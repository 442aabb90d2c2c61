"""Rules of the paper for the gains of a PI law (section 3.2)."""

import math
import warnings

from controlvae.laws.base import Schedule, Target

KI_RANGE = (1e-4, 1e-3)


class TuningWarning(UserWarning):
    """Warning about gains outside the paper's tuning rules."""


def kp_limit(target: float, epsilon: float = 1e-3) -> float:
    r"""Return the largest proportional gain, :math:`K_p \le (1 + \exp(v)) \epsilon`.

    Section 3.2 of the paper. When the KL is zero, the error equals the set point v, and the
    proportional term alone must stay below `epsilon`.

    >>> round(kp_limit(3.0), 4)
    0.0211
    """
    if not (target > 0 and epsilon > 0):
        raise ValueError(
            f"target and epsilon must be positive, got target={target}, epsilon={epsilon}"
        )
    return math.inf if target > 700 else (1 + math.exp(target)) * epsilon


def warn_about_gains(target: Target, kp: float, ki: float, beta_min: float) -> None:
    """Warn if the gains of a PI law are outside the paper's rules.

    The rules are about a KL, so set points of zero or below give no warning. Neither does a
    residual proportional term below `beta_min`, which does no harm.

    Args:
        target: Set point or schedule.
        kp: Proportional gain.
        ki: Integral gain.
        beta_min: Smallest weight.
    """
    lowest = target.min_value() if isinstance(target, Schedule) else target
    if lowest <= 0:
        return
    limit = kp_limit(lowest)
    if kp > limit and (floor := kp / (1 + math.exp(lowest))) > beta_min:
        _warn(
            f"kp={kp:g} is above (1 + exp(v)) * 1e-3 = {limit:.4g} for a set point of {lowest:g}: "
            f"beta cannot fall below {floor:.2g} while the KL is zero"
        )
    if not KI_RANGE[0] <= ki <= KI_RANGE[1]:
        _warn(
            f"ki={ki:g} is outside [{KI_RANGE[0]:g}, {KI_RANGE[1]:g}], "
            "the range in which the paper found training stable"
        )


def _warn(message: str) -> None:
    # Level 5 is the caller of the constructor: _warn, warn_about_gains, __post_init__, __init__.
    warnings.warn(message, TuningWarning, stacklevel=5)
