"""Step responses of the trainings in `step_responses.py`: metrics of a run, table and figure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import controlvae as cv

# Smallest weight that the figure shows: its axis is logarithmic.
_SMALLEST_WEIGHT = 1e-4


class RunId(NamedTuple):
    """Training, law and seed of a run."""

    task: str
    law: str
    seed: int


class StepResponse(NamedTuple):
    """Step response of one run.

    Times are in steps, and None if the run does not settle. The other values are relative to the
    target or to the weight. The last two are over the last tenth; the noise of the weight is its
    standard deviation around a straight line.
    """

    task: str
    law: str
    seed: int
    steps: int
    settled_to_5: float | None
    settled_to_2: float | None
    overshoot: float
    steady_state_error: float
    beta_noise: float


def running_mean(values: Sequence[float], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the last step and the mean of each `window` successive steps."""
    kernel = np.full(window, 1 / window)
    return np.arange(window, len(values) + 1), np.convolve(values, kernel, mode="valid")


def measure_response(
    run: RunId, target: float, kl: Sequence[float], beta: Sequence[float], window: int
) -> StepResponse:
    """Measure a step response from running means of the KL.

    An untrained model has no KL, so a response starts from zero.

    Args:
        run: Training, law and seed.
        target: Target of the KL.
        kl: KL of every step.
        beta: Weight of every step.
        window: Steps of a running mean.
    """
    steps, means = running_mean(kl, window)
    wide, narrow = (
        cv.metrics.step_response(means, target, steps=steps, start=0.0, band=band)
        for band in (0.05, 0.02)
    )
    last = np.array(beta[-len(beta) // 10 :])
    time = np.arange(len(last))
    noise = (last - np.polyval(np.polyfit(time, last, 1), time)).std() / last.mean()
    return StepResponse(
        *run,
        len(kl),
        wide.settling_time,
        narrow.settling_time,
        wide.overshoot,
        wide.steady_state_error,
        float(noise),
    )


def format_table(responses: Sequence[StepResponse]) -> Iterator[str]:
    """Yield the lines of a Markdown table of medians over seeds."""
    yield (
        "| training | law | within 5 % from step | within 2 % from step "
        "| overshoot | steady-state error | β noise |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for task, law in dict.fromkeys((each.task, each.law) for each in responses):
        runs = [each for each in responses if (each.task, each.law) == (task, law)]
        overshoot = statistics.median(run.overshoot for run in runs)
        noise = statistics.median(run.beta_noise for run in runs)
        worst = max((run.steady_state_error for run in runs), key=abs)
        error = statistics.median(abs(run.steady_state_error) for run in runs)
        yield (
            f"| {task} | {law} "
            f"| {_median_time(runs, 'settled_to_5')} | {_median_time(runs, 'settled_to_2')} "
            f"| {overshoot:.0%} | {error:.1%}, worst {worst:+.1%} | {noise:.1%} |"
        )


def _median_time(runs: Sequence[StepResponse], field: str) -> str:
    """Format a median time. A run that has not settled counts as longer than it was."""
    times = [getattr(run, field) for run in runs]
    median = statistics.median(
        run.steps + 1 if time is None else time for run, time in zip(runs, times, strict=True)
    )
    settled = sum(time is not None for time in times)
    text = f"> {runs[0].steps:,}" if median > runs[0].steps else f"{median:,.0f}"
    return text if settled == len(runs) else f"{text} ({settled} of {len(runs)})"


def draw_traces(
    traces: Mapping[RunId, tuple[float, list[float], list[float]]],
    windows: Mapping[str, int],
    path: Path,
) -> None:
    """Draw KL and weight of every run, four trainings per row and a thin line per seed.

    Args:
        traces: Target, KL and weight of every step, by run.
        windows: Steps of a running mean, by training.
        path: Image file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    laws = list(dict.fromkeys(run.law for run in traces))
    columns, rows = min(len(windows), 4), -(-len(windows) // 4)
    figure, axes = plt.subplots(
        2 * rows,
        columns,
        squeeze=False,
        figsize=(3.4 * columns, 4.8 * rows),
        layout="constrained",
        height_ratios=[3, 2] * rows,
    )
    pairs = {task: axes[2 * (k // 4) : 2 * (k // 4) + 2, k % 4] for k, task in enumerate(windows)}
    for unused in axes[-2:, (len(windows) - 1) % 4 + 1 :].flatten():
        unused.axis("off")
    for run, (target, kl, beta) in traces.items():
        above, below = pairs[run.task]
        style = {"color": f"C{laws.index(run.law)}", "linewidth": 0.7}
        steps, means = running_mean(kl, windows[run.task])
        above.semilogx(steps, means / target, **style)
        below.loglog(np.arange(1, len(beta) + 1), np.maximum(beta, _SMALLEST_WEIGHT), **style)
        above.set(title=f"{run.task}, {target:g} nats", ylim=(0, 2.5), xlim=(10, len(kl)))
        above.axhline(1.0, color="black", linestyle="--", linewidth=0.7)
        below.set(xlabel="step", xlim=(10, len(kl)))
    for above, below in zip(axes[::2, 0], axes[1::2, 0], strict=True):
        above.set(ylabel="KL / target, running means")
        below.set(ylabel="β")
    lines = [plt.Line2D([], [], color=f"C{number}") for number in range(len(laws))]
    figure.legend(lines, laws, loc="outside lower center", ncols=len(laws))
    figure.savefig(path, dpi=110)
    plt.close(figure)
