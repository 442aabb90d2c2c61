"""A model of how the KL answers its weight, fitted to a log: to try a law in a second instead of an hour."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from controlvae.laws.backend import FLOATS
from controlvae.laws.base import Law

_LEAST_WEIGHT = (
    1e-4  # a weight below it acts like it: the code of a model without a price on it is finite
)
_MOST_WINDOWS = 4_000  # of a log that the fit looks at; a longer log is averaged down to it
_FEWEST_WINDOWS = 20
WELL = 0.1  # the misfit up to which predictions held in trials: docs/log.md
WIDE = 10.0  # the factor a weight should move by, likewise: a log where it was 4.5 gave more than twice the slope

Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plant:
    r"""The logarithm of the KL follows that of β with a lag, and a batch's KL scatters around it.

    .. math::  \tau\, \dot x = \log K_1 - s \log \beta - x, \qquad \mathrm{KL} = e^{x} (1 + \sigma \varepsilon)

    What it is good for: comparing laws and gains around the weights of the log it was fitted to. What it leaves out:
    that a network goes on learning, so that the weight which holds a KL drifts for thousands of steps; the leap of an
    untrained network's KL in its first steps; collapse. A log in which the weight moved through a wide range tells
    most; one that is missed by more than `WELL` was no such plant's.

    >>> Plant(kl_at_one=12.0, slope=0.4, lag=60).settles_at(0.25)
    20.89...
    """

    kl_at_one: float  # K₁, nats: where a weight of one leads, the plain VAE
    slope: float  # s: by how many per cent the KL falls when the weight rises by one per cent
    lag: float  # τ, steps
    start: float = 0.5  # nats, of the untrained model
    noise: float = 0.0  # σ, of a batch's KL, as a share of it
    misfit: float = 0.0  # of the log it was fitted to, rms, as a share of the KL
    moved: float = (
        math.inf
    )  # largest over least weight of that log: below `WIDE` the slope is hardly known

    def __post_init__(self) -> None:
        for name in ("kl_at_one", "slope", "lag", "start"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be zero or positive, got {self.noise}")

    def settles_at(self, weight: float) -> float:
        """The KL that a weight leads to, if it stays."""
        return self.kl_at_one * max(weight, _LEAST_WEIGHT) ** -self.slope

    @classmethod
    def fit(cls, *logs: Log, held: str = "kl") -> "Plant":
        """The plant behind one run's log or several: records with `step`, `beta`, `kl` and, for the noise, `kl_sd`.

        Without `kl_sd` a line is taken for that of one batch, and the noise for what neighbours differ by. A first
        window whose own spread exceeds its mean is the leap of an untrained network and is left out.
        """
        if not logs or any(isinstance(log, str | os.PathLike) for log in logs):
            raise ValueError("give the records of a log, e.g. RunFolder(path).records()")
        windows = [_Windows.of(log, held) for log in logs]
        coarse = torch.logspace(
            0, math.log10(max(each.ends[-1].item() for each in windows)), 33, dtype=torch.float64
        )
        best = _least_squares(windows, coarse)
        factor = (coarse[1] / coarse[0]).item()
        fine = best.lag * torch.logspace(
            -math.log10(factor), math.log10(factor), 33, dtype=torch.float64
        )
        best = _least_squares(windows, fine)
        if best.slope <= 0:
            raise ValueError(
                "the KL rose with its weight in this log: the weight moved too little for its effect to show"
            )
        noise = torch.cat([each.scatter for each in windows]).median().item()
        chance = torch.cat([each.chance.expand(len(each.ends)) for each in windows]).mean().item()
        misfit = math.sqrt(max(0.0, best.misfit**2 - chance))
        drives = torch.cat([each.drive for each in windows])
        moved = math.exp(drives.max() - drives.min())
        answers = torch.cat([each.answer for each in windows])
        start = min(
            max(best.start, answers.min().item()), answers.max().item()
        )  # long windows tell nothing of it
        return cls(
            math.exp(best.level), best.slope, best.lag, math.exp(start), noise, misfit, moved
        )


def simulate(
    law: Law,
    plant: Plant,
    steps: int = 3_000,
    *,
    log_every: int = 20,
    held: str = "kl",
    seed: int = 0,
) -> list[dict[str, float | None]]:
    """What a law would do with a plant: records as in a run's log, each the mean over `log_every` steps.

    >>> records = simulate(Auto(target=18.0, reach_in=500), Plant(kl_at_one=12.0, slope=0.4, lag=60))
    >>> round(records[-1]["kl"], 2), round(records[-1]["beta"], 2)
    (18.0, 0.36)
    """
    if not isinstance(law, Law):
        raise TypeError(f"law must be a law such as PI(target=18.0), got {law!r}")
    if law.holds_reconstruction:
        raise ValueError(
            f"{type(law).__name__} holds the reconstruction, of which a plant of the KL knows nothing"
        )
    if steps < 1 or log_every < 1:
        raise ValueError(f"steps and log_every must be 1 or more, got {steps} and {log_every}")
    draws = torch.Generator("cpu").manual_seed(seed)
    noise = torch.randn(steps, generator=draws, dtype=torch.float64, device="cpu").tolist()
    state, x, share, records = law.initial(), math.log(plant.start), -math.expm1(-1 / plant.lag), []
    window: list[tuple[float, ...]] = []
    for step in range(1, steps + 1):
        measured = math.exp(x) * max(0.0, 1 + plant.noise * noise[step - 1])
        state = law.update(state, measured, FLOATS)
        window.append((measured, state.target, state.beta, state.p, state.i))
        x += share * (math.log(plant.settles_at(state.beta)) - x)
        if step % log_every == 0 or step == steps:
            means = [sum(column) / len(window) for column in zip(*window, strict=True)]
            spread = math.sqrt(sum((row[0] - means[0]) ** 2 for row in window) / len(window))
            record = dict(zip((held, "target", "beta", "p", "i"), means, strict=True))
            target = None if law.open_loop else record["target"]
            records.append({"step": step, **record, "target": target, f"{held}_sd": spread})
            window = []
    return records


@dataclass(frozen=True)
class _Windows:
    """A log as the fit takes it: (windows,) each."""

    ends: Tensor  # the last step of each window
    drive: Tensor  # -log β
    answer: Tensor  # log KL
    scatter: Tensor  # of batches, sd / mean, whose median counts; of the second half
    chance: Tensor  # the variance of an answer that is the scatter of its batches; left at zero for longer windows

    @classmethod
    def of(cls, log: Log, held: str) -> "_Windows":
        def column(name: str) -> Tensor:
            return torch.tensor([float(r.get(name) or 0.0) for r in log], dtype=torch.float64)

        for name in ("step", "beta", held):
            if not all(math.isfinite(record.get(name) or 0.0) and name in record for record in log):
                raise ValueError(f"every line of the log needs a finite {name}")
        steps, kl, beta, spread = column("step"), column(held), column("beta"), column(f"{held}_sd")
        if len(steps) > 1 and not bool((steps.diff() > 0).all()):
            raise ValueError(
                "the steps of a log must rise from line to line; give several logs one by one"
            )
        first = int(len(log) > 0 and bool(spread[0] > kl[0]))
        steps, kl, beta, spread = steps[first:], kl[first:], beta[first:], spread[first:]
        if len(steps) < _FEWEST_WINDOWS:
            raise ValueError(f"a plant needs {_FEWEST_WINDOWS} log lines or more, got {len(steps)}")
        if not bool((kl > 0).all()):
            line = int((kl <= 0).nonzero()[0])
            raise ValueError(
                f"a plant needs a positive {held}, whose logarithm it follows; step {steps[line]:g} has none"
            )
        size = -(-len(steps) // _MOST_WINDOWS)
        block = lambda values: torch.stack([each.mean() for each in values.split(size)])  # noqa: E731
        ends = torch.stack([each[-1] for each in steps.split(size)])
        drive = -block(beta).clamp(min=_LEAST_WEIGHT).log()
        if drive.std() < 0.01:
            raise ValueError(
                "the weight hardly moved in this log; fit a run under a feedback law or a warm-up"
            )
        scatter, chance = (spread / kl)[len(kl) // 2 :], torch.zeros(1, dtype=torch.float64)
        if not bool(
            spread.any()
        ):  # a line for each batch: what neighbours differ by, as that of normal noise
            scatter = kl.log().diff().abs()[len(kl) // 2 :] / (0.6745 * math.sqrt(2))
            chance = scatter.median().square()[None] / size
        return cls(ends, drive, block(kl).log(), scatter, chance)


@dataclass(frozen=True)
class _Fit:
    level: float
    slope: float
    start: float
    lag: float
    misfit: float


def _least_squares(windows: Sequence[_Windows], lags: Tensor) -> _Fit:
    """For each lag the rest of the model is linear: the lag whose least squares are least."""
    answers = torch.cat([each.answer for each in windows])
    responses = torch.cat([_responses(each, lags) for each in windows])  # (windows, lags, 3)
    fits = []
    for number, lag in enumerate(lags.tolist()):
        columns = responses[:, number]
        level, slope, start = torch.linalg.lstsq(columns, answers[:, None]).solution[:, 0]
        misfit = (columns @ torch.stack([level, slope, start]) - answers).square().mean().sqrt()
        fits.append(_Fit(level.item(), slope.item(), start.item(), lag, misfit.item()))
    return min(fits, key=lambda fit: fit.misfit)


def _responses(windows: _Windows, lags: Tensor) -> Tensor:
    """The mean of x in each window for a unit of level, of slope and of start: (windows, lags, 3)."""
    # One state per lag and column, exact for a weight that stays the same within a window.
    state = torch.zeros(len(lags), 3, dtype=torch.float64)
    state[:, 2] = 1.0
    means, before = (
        [],
        max(0.0, (2 * windows.ends[0] - windows.ends[1]).item()),
    )  # the log of a resumed run begins late
    for end, drive in zip(windows.ends.tolist(), windows.drive.tolist(), strict=True):
        length = end - before
        decay = torch.exp(-length / lags)[:, None]
        goal = torch.tensor([1.0, drive, 0.0], dtype=torch.float64)
        means.append(goal + (state - goal) * (lags[:, None] / length) * (1 - decay))
        state = goal + (state - goal) * decay
        before = end
    return torch.stack(means)
