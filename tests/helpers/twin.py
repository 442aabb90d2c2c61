"""An independent twin of every law, in plain Python, from the paper's formulas; it shares no code with ours."""

import math


def clip(x, low, high):
    return min(max(x, low), high)


def logistic_of_minus(error):
    """1 / (1 + exp(error)), stable."""
    return 0.0 if error > 709 else 1.0 / (1.0 + math.exp(error))


def smoothed(trace, ema):
    """The moving average of a trace, seeded by its first usable value; None where the measurement is unusable."""
    average, out = None, []
    for x in trace:
        if not math.isfinite(x):
            out.append(None)
            continue
        average = x if average is None else ema * average + (1 - ema) * x
        out.append(average)
    return out


def pi(
    trace, target, kp, ki, low, high, start, mode, ema=0.0, linear=False, kd=0.0, derivative_ema=0.9
):
    """beta(t) for t = 1..N; `target` is a function of t. `linear` is the PID form."""
    integral = 0.0 if start is None else start - low
    clamped_before = 0.0 if start is None else start
    unclamped_before = low if start is None else start
    beta = low if start is None else start
    error_before, slope = None, 0.0
    betas = []
    for t, x in enumerate(smoothed(trace, ema), start=1):
        if x is None:
            betas.append(beta)
            continue
        e = target(t) - x
        p = -kp * e if linear else kp * logistic_of_minus(e)
        if linear:
            change = 0.0 if error_before is None else e - error_before
            slope = derivative_ema * slope + (1 - derivative_ema) * (-kd * change)
        trial = integral - ki * e
        if mode == "none":
            integral = trial
        elif mode == "algorithm1":
            integral = trial if low <= clamped_before <= high else integral
        elif mode == "freeze":
            integral = trial if low <= unclamped_before <= high else integral
        if mode == "conditional":
            asked = low + p + trial + slope
            if not ((asked < low and e > 0) or (asked > high and e < 0)):
                integral = trial
        else:
            asked = low + p + integral + slope
        beta = clip(asked, low, high)
        clamped_before, unclamped_before, error_before = beta, asked, e
        betas.append(beta)
    return betas


def capacity(trace, target, gamma):
    """The slope of gamma |KL - C| with respect to the KL; the last one where the KL is unusable."""
    slope, slopes = 0.0, []
    for t, x in enumerate(trace, start=1):
        if math.isfinite(x):
            slope = gamma if x > target(t) else -gamma if x < target(t) else 0.0
        slopes.append(slope)
    return slopes


def staircase(start, stop, step, every):
    return lambda t: min(start + step * (t // every), stop)


def linear(start, stop, steps):
    return lambda t: start + (stop - start) * min(t / steps, 1.0)


def sigmoid(steps):
    return lambda t: 1.0 if t >= steps else 1.0 / (1.0 + math.exp(-(t - steps / 2) / (steps / 10)))


def cyclical(period, ramp):
    return lambda t: min((t % period) / period / ramp, 1.0)


def auto(trace, target, reach_in, low, high, start):
    """beta(t) of the law on logarithms; `target` is a function of t. Without `reach_in` its horizon grows."""
    integral, beta, betas = math.log(start), start, []
    average, seen, last, variance, distance = None, 0, None, 0.0, 2.0
    for t, x in enumerate(trace, start=1):
        if not math.isfinite(x):
            betas.append(beta)
            continue
        horizon = reach_in or clip(seen / 8, 200, 2_000)
        batches = horizon / 20
        if not reach_in and abs(distance) <= 1 / 4:
            batches = max(batches, min(2 * variance / 0.06**2, 200))
        average = x if average is None else average + (x - average) / batches
        relative = distance = 2 * (target(t) - average) / (target(t) + abs(average))
        if not reach_in:
            horizon = 800 + seen if abs(relative) > 1 / 4 else max(horizon, 10 * batches)
        if last is not None and abs(relative) <= 1 / 4:
            variance += (2 * ((x - last) / (abs(x) + abs(last) + 1e-12)) ** 2 - variance) / 100
        last = x
        seen += 1
        trial = integral - 16 / horizon * relative
        asked = clip(trial - 2 * relative, -50, 50)
        if not (
            (asked < math.log(low) and relative > 0) or (asked > math.log(high) and relative < 0)
        ):
            integral = trial
        beta = clip(math.exp(asked), low, high)
        betas.append(beta)
    return betas


def geco(trace, target, alpha, start, ema):
    """1 / lambda(t) of Rezende & Viola's update, away from its bounds."""
    multiplier, betas = 1 / start, []
    for x in smoothed(trace, ema):
        if x is not None:
            multiplier *= math.exp(alpha * (x - target))
        betas.append(1 / multiplier)
    return betas
