"""Faults that a monitor names: a weight that acts the wrong way, in vain, or at a bound."""

from typing import NamedTuple

from controlvae._monitor.state import LawTraits, MonitorState, Reading
from controlvae.laws.backend import Backend, Value, larger

NO_FAULT, WRONG_DIRECTION, OUT_OF_REACH, NO_ANSWER, RUNAWAY = range(5)
# A weight that pushes without any progress is named after this many steps. Once there was progress,
# it is named after the smaller number without more of it, or after half the time that the progress
# took, if that is longer.
_PATIENCE_STEPS, _LATER_PATIENCE_STEPS = 475, 200
# At the lower bound a quantity that has never reached this fraction of its target may still form:
# the total correlation of an untrained code is zero for thousands of steps.
_FORMING_FRACTION, _FORMING_STEPS = 0.2, 5_000
# Progress reduces the deviation to this fraction of its last reference, or by this many half widths
# of the band within 100 steps. A slow network moves away first and then approaches steadily.
_PROGRESS, _APPROACH_BANDS = 0.9, 0.15
# Factors by which a weight moves before its effect is questioned.
_MOVED, _MOVED_FAR = 100.0, 1e4
# Growth of the deviation, its size in half widths of the band, and number of blocks that grow, which
# show a wrong direction. A slow loop overshoots for as long, but not as far.
_WRONG_GROWTH, _WRONG_BANDS, _WRONG_BLOCKS = 2.0, 10.0, 8
# Factor by which a weight of the wrong direction grows before it has run away, and the smallest
# weight to count from: the first weight of a law may be as good as zero.
RUNAWAY_GROWTH, _LEAST_WEIGHT = 1e6, 1e-3
# Deviation that counts as a fault, in half widths of the band.
_FAULTY_BANDS = 1.2
# Blocks at a bound: the count that shows saturation, and the largest count that is kept.
BOUND_BLOCKS, _MAX_BOUND_BLOCKS = 8, 16


class Level(NamedTuple):
    """Deviation from the target in the last blocks, and what to compare it with."""

    noise: Value  # variance of a block mean
    band: Value  # half width of the band around the target
    now: Value  # mean over the last four blocks
    before: Value  # mean over the four blocks before


def has_run_away(fault: float, reference: float, beta: float) -> bool:
    """Return True if a weight grew a millionfold while the measurement moved the wrong way.

    Args:
        fault: Fault of the loop.
        reference: Weight at the last progress towards the target.
        beta: Current weight.
    """
    return fault == WRONG_DIRECTION and beta >= RUNAWAY_GROWTH * max(reference, _LEAST_WEIGHT)


def find_fault(
    state: MonitorState,
    level: Level,
    reading: Reading,
    law: LawTraits,
    is_inside: Value,
    xp: Backend,
) -> MonitorState:
    """Return the state with the fault that the last blocks show, if any.

    Args:
        state: State of the monitor.
        level: Deviation in the last blocks.
        reading: State of the law at the end of the block.
        law: Properties of the law.
        is_inside: True if the mean of the last blocks is in the band.
        xp: Operations for this kind of values.
    """
    error = (level.noise / 4) ** 0.5  # standard error of a mean of four blocks
    distance, reference = abs(level.now), abs(state.ref_deviation)
    is_out = (distance > _FAULTY_BANDS * level.band + 3 * error) & (law.closed_loop > 0)
    growth = distance - abs(level.before)
    crosses = level.now * state.ref_deviation < 0
    comes_closer = (
        (distance < _PROGRESS * reference - 2 * error)
        | (growth < -_APPROACH_BANDS * level.band - 3 * error)
        | is_inside
    )
    progresses = comes_closer | crosses
    is_new = state.blocks <= 1
    grows = growth > 0.4 * level.band + 3 * error
    moving_away = xp.where(grows & (level.now * level.before > 0), state.moving_away + 1, 0.0)
    at_bound = _count_blocks_at_bound(state.at_bound, reading, law, xp)

    ref_step = xp.where(progresses, reading.step, state.ref_step)
    waited = reading.step - ref_step
    taken = (ref_step - state.base_step) / 2
    later = larger(taken, _LATER_PATIENCE_STEPS + 0 * waited, xp)
    patience = xp.where(state.progressed > 0, later, _PATIENCE_STEPS + 0 * waited)
    is_stuck = is_out & (waited >= patience)
    is_far = (distance > _WRONG_GROWTH * reference) & (distance > _WRONG_BANDS * level.band)
    is_wrong = is_out & is_far & (moving_away >= _WRONG_BLOCKS)
    is_wrong = is_wrong & _has_moved(state.ref_beta, reading.beta, _MOVED)
    has_formed = state.peak >= _FORMING_FRACTION * abs(reading.target)
    at_low = (-at_bound >= BOUND_BLOCKS) & (has_formed | (waited >= _FORMING_STEPS))
    is_bounded = is_stuck & ((at_bound >= BOUND_BLOCKS) | at_low)
    has_no_effect = is_stuck & _has_moved(state.ref_beta, reading.beta, _MOVED_FAR)
    responded = xp.where(state.progressed > 0, float(RUNAWAY), float(NO_ANSWER) + 0.0 * distance)
    fault = xp.where(has_no_effect, responded, 0.0 * distance)
    fault = xp.where(is_bounded, float(OUT_OF_REACH), fault)
    fault = xp.where(is_wrong, float(WRONG_DIRECTION), fault)

    closer = comes_closer & (state.blocks > 1)
    has_weight = (reading.beta > 0) & (progresses | (state.ref_beta <= 0))
    return state._replace(
        ref_step=ref_step,
        ref_deviation=xp.where(progresses | is_new, level.now, state.ref_deviation),
        ref_beta=xp.where(has_weight, reading.beta, state.ref_beta),
        progressed=xp.where(crosses, 0.0, xp.where(closer, 1.0, state.progressed)),
        moving_away=moving_away,
        at_bound=at_bound,
        fault=fault,
    )


def _count_blocks_at_bound(count: Value, reading: Reading, law: LawTraits, xp: Backend) -> Value:
    """Return the number of blocks at a bound, negative at the lower one.

    Noise moves a saturated weight off its bound now and then, so such a block only reduces the
    count.
    """
    side = (reading.unclamped_beta > law.high) * 1.0 - (reading.unclamped_beta < law.low) * 1.0
    back = xp.where(count > 0, -1.0, xp.where(count < 0, 1.0, 0.0 * count))
    return xp.clip(
        count + xp.where(side * side > 0, side, back), -_MAX_BOUND_BLOCKS, _MAX_BOUND_BLOCKS
    )


def _has_moved(reference: Value, beta: Value, factor: float) -> Value:
    """Return True if a positive weight has moved by a factor, up or down.

    A weight of zero is at a bound, which is another fault.
    """
    is_lower = (beta > 0) & (factor * beta <= reference)
    return (reference > 0) & ((beta >= factor * reference) | is_lower)
