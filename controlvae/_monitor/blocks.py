"""Monitor of a control loop: pure functions that judge how the measurement follows its target.

Each update of the law adds the deviation, measured - target, to the sums of a block. When a block
is full, `fold` adds its mean to the state of the monitor. The state tells whether the loop has
settled and since when, holds means for an interval of the steady state, and names a fault.

As in the laws, everything is written once for floats and for tensors, and nothing synchronises with
the host.
"""

from typing import Any

from controlvae._monitor.faults import Level, find_fault
from controlvae._monitor.state import (
    BLOCK_STEPS,
    RECENT_BLOCKS,
    STORED_MEANS,
    BlockSums,
    LawTraits,
    MonitorState,
    Reading,
)
from controlvae.laws.backend import Backend, Value, larger
from controlvae.laws.base import LARGEST_MEASUREMENT

Sums = tuple[float, float, float]  # fields of `BlockSums`
# Half width of the band around the target, as a fraction of its scale.
BAND = 0.05
# Blocks in the band after which the loop counts as settled.
SETTLED_BLOCKS = 8
# Blocks over which the noise is averaged after that.
_NOISE_BLOCKS = 16
# Standard errors by which a mean must be outside of the band to end the time in it.
_LEAVING_ERRORS = 4.0


def observe(sums: BlockSums, measured: Value, target: Value, xp: Backend) -> BlockSums:
    """Return the sums of a block after one more measurement.

    Args:
        sums: Sums before the measurement.
        measured: Measurement that the law received.
        target: Set point of the same update.
        xp: Operations for this kind of values.
    """
    usable = abs(measured) < LARGEST_MEASUREMENT  # false for NaN too
    deviation = xp.where(usable, measured - target, 0.0)
    return BlockSums(
        sums.block_steps + 1, sums.block_usable + usable, sums.block_deviation + deviation
    )


def observe_float(sums: Sums, measured: float, target: float) -> Sums:
    """Do the same as `observe` with floats, in a third of the time.

    Args:
        sums: Sums before the measurement.
        measured: Measurement that the law received.
        target: Set point of the same update.
    """
    steps, usable, deviation = sums
    if -LARGEST_MEASUREMENT < measured < LARGEST_MEASUREMENT:
        return steps + 1, usable + 1, deviation + (measured - target)
    return steps + 1, usable, deviation


def fold(
    state: MonitorState,
    sums: BlockSums,
    reading: Reading,
    law: LawTraits,
    xp: Backend,
    vectors: Any,
) -> MonitorState:
    """Return the state of the monitor after a block.

    Args:
        state: State before the block.
        sums: Sums over the block.
        reading: State of the law at the end of the block.
        law: Properties of the law.
        xp: Operations for this kind of values.
        vectors: Operations for vectors of this kind.
    """
    has_mean = sums.block_usable > 0
    deviation = sums.block_deviation / xp.where(has_mean, sums.block_usable, 1.0)
    deviation = xp.where(has_mean, deviation, state.recent[0])
    state = _restart_after_a_jump(state, reading, xp)
    pushed, filled = vectors.push(state.recent, deviation), vectors.fill(state.recent, deviation)
    measured = deviation + reading.target
    state = state._replace(
        skipped=state.skipped + sums.block_steps - sums.block_usable,
        recent=vectors.where(state.blocks > 0, pushed, filled),
        first=xp.where(state.blocks > 0, state.first, measured),
        peak=larger(state.peak, abs(measured), xp),
    )
    level = _measure_level(state, reading, law, xp, vectors)
    state, is_inside = _judge_band(state, level, reading, law, xp, vectors)
    state = _store_mean(state, deviation, has_mean, xp, vectors)
    state = find_fault(state, level, reading, law, is_inside, xp)
    return state._replace(blocks=state.blocks + 1, target=reading.target)


def band_width(target: Value, peak: Value, noise: Value, xp: Backend) -> Value:
    """Return half the width of the band in which the loop counts as settled.

    It is 5 % of the target, or of the standard deviation of a batch if that is larger. A target of
    zero has no scale, so the largest measurement so far takes its place.

    Args:
        target: Set point.
        peak: Largest absolute measurement.
        noise: Variance of the mean of a block.
        xp: Operations for this kind of values.
    """
    scale = xp.where(abs(target) > 0, abs(target), peak)
    return BAND * larger(scale, (BLOCK_STEPS * noise) ** 0.5, xp)


def _restart_after_a_jump(state: MonitorState, reading: Reading, xp: Backend) -> MonitorState:
    """Return the state with new references if the target has jumped. A slow ramp is no jump."""
    change = abs(reading.target - state.target)
    scale = larger(abs(reading.target), abs(state.target), xp)
    jumped = (state.blocks > 0) & (change > BAND * scale)
    return state._replace(
        blocks=xp.where(jumped, 0.0, state.blocks),
        in_band=xp.where(jumped, 0.0, state.in_band),
        base_step=xp.where(jumped, reading.step, state.base_step),
        ref_step=xp.where(jumped, reading.step, state.ref_step),
        ref_beta=xp.where(jumped, reading.beta, state.ref_beta),
        progressed=xp.where(jumped, 0.0, state.progressed),
        moving_away=xp.where(jumped, 0.0, state.moving_away),
    )


def _measure_level(
    state: MonitorState, reading: Reading, law: LawTraits, xp: Backend, vectors: Any
) -> Level:
    half = RECENT_BLOCKS // 2
    noise = vectors.noise(state.recent)
    # The approach to the target adds to the estimate, so the average begins after it.
    average = state.noise + (noise - state.noise) / _NOISE_BLOCKS
    noise = xp.where(state.in_band >= SETTLED_BLOCKS, average, noise)
    return Level(
        noise,
        band_width(reading.target, state.peak, noise, xp),
        _violation(vectors.mean(state.recent, 0, half), law, xp),
        _violation(vectors.mean(state.recent, half, RECENT_BLOCKS), law, xp),
    )


def _violation(deviation: Value, law: LawTraits, xp: Backend) -> Value:
    """Return the deviation, or zero where a one-sided target is satisfied."""
    return xp.where(deviation * law.one_sided < 0, 0.0, deviation)


def _judge_band(
    state: MonitorState,
    level: Level,
    reading: Reading,
    law: LawTraits,
    xp: Backend,
    vectors: Any,
) -> tuple[MonitorState, Value]:
    """Return the state with the number of blocks in the band, and whether this block is inside.

    The mean of two blocks decides, or that of eight if blocks are noisy. Once the loop has settled,
    only a mean of eight that is outside by more than four standard errors ends the time in the
    band. The measurements since then are therefore not selected by their noise.
    """
    is_quiet = 9 * level.noise <= level.band**2
    few, many = (vectors.mean(state.recent, 0, count) for count in (2, RECENT_BLOCKS))
    count = xp.where(is_quiet, 2.0, float(RECENT_BLOCKS) + 0 * level.noise)
    distance = abs(_violation(xp.where(is_quiet, few, many), law, xp))
    is_inside = (distance <= level.band) & (state.blocks + 1 >= count)
    margin = _LEAVING_ERRORS * (level.noise / RECENT_BLOCKS) ** 0.5
    is_near = abs(_violation(many, law, xp)) <= level.band + margin
    stays = is_near & (state.in_band >= SETTLED_BLOCKS)
    in_band = xp.where(is_inside | stays, state.in_band + 1, 0.0)
    # The mean tells about the middle of its blocks.
    entered = larger(reading.step - BLOCK_STEPS / 2 * count, state.base_step, xp)
    since = xp.where(in_band == 1, entered, state.since)
    return state._replace(noise=level.noise, in_band=in_band, since=since), is_inside


def _store_mean(
    state: MonitorState, deviation: Value, has_mean: Value, xp: Backend, vectors: Any
) -> MonitorState:
    """Return the state with the block's mean among the stored ones.

    When all places are taken, neighbouring means are merged, and each mean then covers twice as
    many blocks. There are always between 8 and 15 means of equal length.
    """
    continues = state.in_band > 1
    length = xp.where(continues, state.mean_length, 1.0)
    count = xp.where(continues, state.mean_count, 0.0)
    adds = has_mean & (state.in_band > 0)
    total = xp.where(continues, state.part_sum, 0.0) + xp.where(adds, deviation, 0.0)
    blocks = xp.where(continues, state.part_count, 0.0) + adds
    is_full = blocks >= length
    means = vectors.store(state.means, xp.where(is_full, count, -1.0), total / length)
    count = count + is_full
    overflows = count >= STORED_MEANS
    return state._replace(
        mean_length=xp.where(overflows, 2 * length, length),
        mean_count=xp.where(overflows, STORED_MEANS / 2, count),
        part_sum=xp.where(is_full, 0.0, total),
        part_count=xp.where(is_full, 0.0, blocks),
        means=vectors.where(overflows, vectors.halve(means), means),
    )
