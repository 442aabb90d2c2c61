"""Model of how the KL responds to its weight, fitted to a log, to try a law within a second."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from controlvae.laws.backend import FLOATS
from controlvae.laws.base import Feedback, Law
from controlvae.laws.states import read_signals

# Smaller weights act like this one: the code of a model without a KL term is finite.
_SMALLEST_EFFECTIVE_WEIGHT = 1e-4
# The fit averages a longer log down to this many windows.
_MAX_WINDOWS = 4_000
_MIN_WINDOWS = 20
# Median absolute deviation of a standard normal distribution.
_NORMAL_MAD = 0.6745
# Number of lags on each of the two grids that the fit searches.
_LAG_GRID = 33
# Misfit up to which predictions were accurate in trials: docs/log.md.
GOOD_MISFIT = 0.1
# Smallest ratio of the largest to the smallest weight in a log. A log with a ratio of 4.5 gave more
# than twice the true slope: docs/log.md.
WIDE_WEIGHT_RATIO = 10.0

Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plant:
    r"""First-order model of the KL: log KL follows log β with a lag, and batches add noise.

    .. math::  \tau\, \dot x = \log K_1 - s \log \beta - x,
               \qquad \mathrm{KL} = e^{x} (1 + \sigma \varepsilon)

    Use it to compare laws and gains near the weights of the log it was fitted to. It does not model
    that a network keeps learning, so that the weight which holds a KL drifts for thousands of
    steps. Nor does it model the jump of an untrained network's KL in its first steps, or collapse.
    A log in which the weight moved through a wide range is most informative. If the misfit is above
    `GOOD_MISFIT`, the model does not describe the log.

    >>> Plant(kl_at_one=12.0, slope=0.4, lag=60).settles_at(0.25)
    20.89...

    Args:
        kl_at_one: K₁, the KL in nats at a weight of one (the plain VAE).
        slope: s, the decrease of the KL in per cent when the weight increases by one per cent.
        lag: τ, the time constant in steps.
        start: KL of the untrained model in nats.
        noise: σ, the relative standard deviation of a batch's KL.
        misfit: Relative rms error on the log the model was fitted to.
        weight_ratio: Ratio of the largest to the smallest weight in that log. Below
            `WIDE_WEIGHT_RATIO` the slope is uncertain.
    """

    kl_at_one: float
    slope: float
    lag: float
    start: float = 0.5
    noise: float = 0.0
    misfit: float = 0.0
    weight_ratio: float = math.inf

    def __post_init__(self) -> None:
        for name in ("kl_at_one", "slope", "lag", "start"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be zero or positive, got {self.noise}")

    def settles_at(self, weight: float) -> float:
        """Return the KL that a constant weight leads to."""
        return self.kl_at_one * max(weight, _SMALLEST_EFFECTIVE_WEIGHT) ** -self.slope

    @classmethod
    def fit(cls, *logs: Log, term: str = "kl") -> "Plant":
        """Fit the model to the logs of one or more runs.

        Records have `step`, `beta`, `kl` and, for the noise, `kl_sd`. Without `kl_sd` a record is
        taken as one batch, and the noise is estimated from differences of neighbours. A first
        window whose standard deviation exceeds its mean is the jump of an untrained network and is
        skipped.

        Args:
            *logs: Records of each run.
            term: Name of the controlled term in the records.
        """
        if not logs or any(isinstance(log, str | os.PathLike) for log in logs):
            raise ValueError(
                "logs must be the records of one or more logs, e.g. RunFolder(path).records(), "
                f"got {logs!r}"
            )
        windows = [_Windows.from_log(log, term) for log in logs]
        best = _search_lag(windows)
        if best.slope <= 0:
            raise ValueError(
                f"the slope must be positive, got {best.slope:.3g}: the KL increased with its "
                "weight; use a log in which the weight moves more"
            )
        noise = torch.cat([each.noise for each in windows]).median().item()
        variances = [each.noise_variance.expand(len(each.ends)) for each in windows]
        noise_variance = torch.cat(variances).mean().item()
        misfit = math.sqrt(max(0.0, best.misfit**2 - noise_variance))
        inputs = torch.cat([each.negative_log_beta for each in windows])
        outputs = torch.cat([each.log_kl for each in windows])
        # Long windows do not determine the start, so it is limited to the range of the log.
        start = min(max(best.start, outputs.min().item()), outputs.max().item())
        return cls(
            math.exp(best.level),
            best.slope,
            best.lag,
            math.exp(start),
            noise,
            misfit,
            weight_ratio=math.exp(inputs.max() - inputs.min()),
        )


def simulate(
    law: Law,
    plant: Plant,
    steps: int = 3_000,
    *,
    log_every: int = 20,
    term: str = "kl",
    seed: int = 0,
) -> list[dict[str, float | None]]:
    """Return the records that a law would log when it controls a plant.

    Each record is a mean over `log_every` steps, as in the log of a run.

    >>> law = Auto(target=18.0, reach_in=500)
    >>> records = simulate(law, Plant(kl_at_one=12.0, slope=0.4, lag=60))
    >>> round(records[-1]["kl"], 2), round(records[-1]["beta"], 2)
    (18.0, 0.36)

    Args:
        law: Law to simulate.
        plant: Model of the KL.
        steps: Number of training steps.
        log_every: Number of steps per record.
        term: Name of the controlled term in the records.
        seed: Seed of the measurement noise.
    """
    if not isinstance(law, Law):
        raise TypeError(f"law must be a law such as PI(target=18.0), got {law!r}")
    if law.controls_reconstruction:
        raise ValueError(
            f"law must control the KL, but {type(law).__name__} controls the reconstruction; "
            "a plant models the KL only"
        )
    if isinstance(law, Feedback) and law.direction == "inverse":
        raise ValueError(
            "law must have direction='direct', got 'inverse'; a plant models a KL, which falls as "
            "its weight rises"
        )
    if steps < 1 or log_every < 1:
        raise ValueError(f"steps and log_every must be at least 1, got {steps} and {log_every}")
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = torch.randn(steps, generator=generator, dtype=torch.float64, device="cpu").tolist()
    state, x, rate = law.initial_state(), math.log(plant.start), -math.expm1(-1 / plant.lag)
    records: list[dict[str, float | None]] = []
    window: list[tuple[float, ...]] = []
    for step in range(1, steps + 1):
        measured = math.exp(x) * max(0.0, 1 + plant.noise * noise[step - 1])
        state = law.update(state, measured, FLOATS)
        now = read_signals(state)
        window.append((measured, now.target, now.beta, now.proportional, now.integral))
        x += rate * (math.log(plant.settles_at(now.beta)) - x)
        if step % log_every == 0 or step == steps:
            records.append({"step": step, **_summarise(window, law, term)})
            window = []
    return records


def _summarise(window: Sequence[tuple[float, ...]], law: Law, term: str) -> dict[str, float | None]:
    means = [sum(column) / len(window) for column in zip(*window, strict=True)]
    sd = math.sqrt(sum((row[0] - means[0]) ** 2 for row in window) / len(window))
    record = dict(zip((term, "target", "beta", "p", "i"), means, strict=True))
    return {**record, "target": None if law.open_loop else record["target"], f"{term}_sd": sd}


@dataclass(frozen=True)
class _Windows:
    """Log in the form that the fit needs; tensors have shape (windows,)."""

    ends: Tensor  # last step of each window
    negative_log_beta: Tensor
    log_kl: Tensor
    noise: Tensor  # relative standard deviation of batches in the second half of the log
    noise_variance: Tensor  # variance of log_kl due to that noise; zero for longer windows

    @classmethod
    def from_log(cls, log: Log, term: str) -> "_Windows":
        steps, kl, beta, sd = _read_columns(log, term)
        size = -(-len(steps) // _MAX_WINDOWS)

        def average(values: Tensor) -> Tensor:
            return torch.stack([each.mean() for each in values.split(size)])

        ends = torch.stack([each[-1] for each in steps.split(size)])
        negative_log_beta = -average(beta).clamp(min=_SMALLEST_EFFECTIVE_WEIGHT).log()
        if negative_log_beta.std() < 0.01:
            raise ValueError(
                "the weight must move in the log, but it is nearly constant; "
                "fit a run under a feedback law or a warm-up"
            )
        noise, variance = (sd / kl)[len(kl) // 2 :], torch.zeros(1, dtype=torch.float64)
        if not bool(sd.any()):
            # One record per batch: estimate the standard deviation of normal noise from the
            # differences of neighbours.
            noise = kl.log().diff().abs()[len(kl) // 2 :] / (_NORMAL_MAD * math.sqrt(2))
            variance = noise.median().square()[None] / size
        return cls(ends, negative_log_beta, average(kl).log(), noise, variance)


def _read_columns(log: Log, term: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return steps, KL, β and standard deviation of the KL, after validation."""

    def column(name: str) -> Tensor:
        return torch.tensor([float(r.get(name) or 0.0) for r in log], dtype=torch.float64)

    for name in ("step", "beta", term):
        if not all(math.isfinite(record.get(name) or 0.0) and name in record for record in log):
            raise ValueError(f"every record of the log must have a finite {name!r}")
    steps, kl, beta, sd = column("step"), column(term), column("beta"), column(f"{term}_sd")
    if len(steps) > 1 and not bool((steps.diff() > 0).all()):
        raise ValueError(
            "steps must increase within a log; pass several logs as separate arguments"
        )
    first = int(len(log) > 0 and bool(sd[0] > kl[0]))
    steps, kl, beta, sd = steps[first:], kl[first:], beta[first:], sd[first:]
    if len(steps) < _MIN_WINDOWS:
        raise ValueError(f"the log must have at least {_MIN_WINDOWS} records, got {len(steps)}")
    if not bool((kl > 0).all()):
        line = int((kl <= 0).nonzero()[0])
        raise ValueError(
            f"{term} must be positive, because the model fits its logarithm, "
            f"got {kl[line]:g} at step {steps[line]:g}"
        )
    return steps, kl, beta, sd


@dataclass(frozen=True)
class _Fit:
    level: float
    slope: float
    start: float
    lag: float
    misfit: float


def _search_lag(windows: Sequence[_Windows]) -> _Fit:
    """Return the best fit over a coarse grid of lags, then over a fine grid around its best."""

    def grid(low: float, high: float) -> Tensor:
        return torch.logspace(low, high, _LAG_GRID, dtype=torch.float64)

    coarse = grid(0, math.log10(max(each.ends[-1].item() for each in windows)))
    best = _fit_lags(windows, coarse)
    spacing = math.log10((coarse[1] / coarse[0]).item())
    return _fit_lags(windows, best.lag * grid(-spacing, spacing))


def _fit_lags(windows: Sequence[_Windows], lags: Tensor) -> _Fit:
    """Return the best least-squares fit; for each lag the model is linear in the rest."""
    outputs = torch.cat([each.log_kl for each in windows])
    responses = torch.cat([_responses(each, lags) for each in windows])  # (windows, lags, 3)
    fits = []
    for number, lag in enumerate(lags.tolist()):
        columns = responses[:, number]
        level, slope, start = torch.linalg.lstsq(columns, outputs[:, None]).solution[:, 0]
        misfit = (columns @ torch.stack([level, slope, start]) - outputs).square().mean().sqrt()
        fits.append(_Fit(level.item(), slope.item(), start.item(), lag, misfit.item()))
    return min(fits, key=lambda fit: fit.misfit)


def _responses(windows: _Windows, lags: Tensor) -> Tensor:
    """Return the window means of x for unit level, slope and start: (windows, lags, 3)."""
    # One state per lag and column. The solution is exact for a weight that is constant in a window.
    state = torch.zeros(len(lags), 3, dtype=torch.float64)
    state[:, 2] = 1.0
    means = []
    # The log of a resumed run does not begin at step 0.
    before = max(0.0, (2 * windows.ends[0] - windows.ends[1]).item())
    pairs = zip(windows.ends.tolist(), windows.negative_log_beta.tolist(), strict=True)
    for end, value in pairs:
        length = end - before
        decay = torch.exp(-length / lags)[:, None]
        limit = torch.tensor([1.0, value, 0.0], dtype=torch.float64)
        means.append(limit + (state - limit) * (lags[:, None] / length) * (1 - decay))
        state = limit + (state - limit) * decay
        before = end
    return torch.stack(means)
