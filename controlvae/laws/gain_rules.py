"""The paper's limits on the gains of a PI law (section 3.2)."""

import math

from controlvae.laws.base import Schedule, Target, warn_outside

KI_RANGE = (1e-4, 1e-3)


def kp_limit(target: float, epsilon: float = 1e-3) -> float:
    r"""The largest proportional gain: :math:`K_p \le (1 + \exp(v)) \epsilon` (section 3.2).

    With KL at zero the error is the whole set point, and the proportional term alone must stay below `epsilon`.

    >>> round(kp_limit(3.0), 4)
    0.0211
    """
    if not (target > 0 and epsilon > 0):
        raise ValueError(
            f"target and epsilon must be positive, got target={target}, epsilon={epsilon}"
        )
    return math.inf if target > 700 else (1 + math.exp(target)) * epsilon


def warn_about_gains(target: Target, kp: float, ki: float, beta_min: float) -> None:
    """Warns where a PI law's gains are outside the rules, with the numbers; a floor below `beta_min` harms nobody."""
    lowest = target.lowest() if isinstance(target, Schedule) else target
    limit = kp_limit(lowest)
    if kp > limit and (floor := kp / (1 + math.exp(lowest))) > beta_min:
        warn_outside(
            f"kp={kp:g} is above (1 + exp(v)) * 1e-3 = {limit:.4g} for a set point of {lowest:g}: "
            f"beta keeps a floor of {floor:.2g} while what it holds is zero"
        )
    if not KI_RANGE[0] <= ki <= KI_RANGE[1]:
        warn_outside(
            f"ki={ki:g} is outside [{KI_RANGE[0]:g}, {KI_RANGE[1]:g}], where the paper found training stable"
        )
