"""Independent implementation of every law in plain Python, from the formulas of the papers."""

import math


def clip(x, low, high):
    return min(max(x, low), high)


def sigmoid_of_negative(error):
    """Return 1 / (1 + exp(error)) without overflow."""
    return 0.0 if error > 709 else 1.0 / (1.0 + math.exp(error))


def moving_average(trace, ema):
    """Return the moving average of a trace, with None for unusable measurements.

    The first usable value initialises it.
    """
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
    """Return beta(t) for t = 1..N of PI control, or of PID control if `linear`.

    `target` is a function of t.
    """
    integral = 0.0 if start is None else start - low
    last_clamped = 0.0 if start is None else start
    last_unclamped = low if start is None else start
    beta = low if start is None else start
    last_error, slope = None, 0.0
    betas = []
    for t, x in enumerate(moving_average(trace, ema), start=1):
        if x is None:
            betas.append(beta)
            continue
        e = target(t) - x
        p = -kp * e if linear else kp * sigmoid_of_negative(e)
        if linear:
            change = 0.0 if last_error is None else e - last_error
            slope = derivative_ema * slope + (1 - derivative_ema) * (-kd * change)
        trial = integral - ki * e
        if mode == "none":
            integral = trial
        elif mode == "algorithm1":
            integral = trial if low <= last_clamped <= high else integral
        elif mode == "freeze":
            integral = trial if low <= last_unclamped <= high else integral
        if mode == "conditional":
            unclamped = low + p + trial + slope
            if not ((unclamped < low and e > 0) or (unclamped > high and e < 0)):
                integral = trial
        else:
            unclamped = low + p + integral + slope
        beta = clip(unclamped, low, high)
        last_clamped, last_unclamped, last_error = beta, unclamped, e
        betas.append(beta)
    return betas


def capacity(trace, target, gamma):
    """Return the slope of gamma |KL - C| with respect to the KL.

    An unusable KL repeats the previous slope.
    """
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
    """Return beta(t) of `Auto` with `reach_in`; `target` is a function of t."""
    integral, beta, betas, average = math.log(start), start, [], None
    for t, x in enumerate(trace, start=1):
        if not math.isfinite(x):
            betas.append(beta)
            continue
        average = x if average is None else average + (x - average) / (reach_in / 20)
        relative = 2 * (target(t) - average) / (target(t) + abs(average))
        trial = integral - 16 / reach_in * relative
        unclamped = clip(trial - 2 * relative, -50, 50)
        if not (
            (unclamped < math.log(low) and relative > 0)
            or (unclamped > math.log(high) and relative < 0)
        ):
            integral = trial
        beta = clip(math.exp(unclamped), low, high)
        betas.append(beta)
    return betas


def geco(trace, target, alpha, start, ema):
    """Return 1 / lambda(t) of the update of Rezende & Viola, away from its bounds."""
    multiplier, betas = 1 / start, []
    for x in moving_average(trace, ema):
        if x is not None:
            multiplier *= math.exp(alpha * (x - target))
        betas.append(1 / multiplier)
    return betas
