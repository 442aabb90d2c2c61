"""Simulating laws: the response of a run's model to other laws, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import UserError
from controlvae.lab.config import override
from controlvae.lab.plots.curves import RunTrace, plot_simulation
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, as_folder
from controlvae.laws import Law
from controlvae.metrics import step_response
from controlvae.simulation import GOOD_MISFIT, WIDE_WEIGHT_RATIO, Plant, simulate

# In a narrower band, the plant's error dominates: a network that still learns is not in the model.
_SETTLING_BAND = 0.05


class SimulationResult(NamedTuple):
    """Fitted plant, and how each law behaves on it."""

    plant: Plant
    traces: list[RunTrace]  # of the run itself, then of each law
    warnings: list[str]  # reasons to doubt the plant
    summary: list[str]  # human-readable lines
    figure: Path


def simulate_run(
    run: LoadedRun | RunFolder | str | Path,
    laws: Sequence[Law | str],
    *,
    steps: int | None = None,
    out: str | Path | None = None,
) -> SimulationResult:
    """Fit a plant to a run's log, try each law on it, and draw the results.

    Args:
        run: Run or run folder.
        laws: Laws to try, such as `Auto(18)` or the text "Auto(18)".
        steps: Number of steps to simulate. The default is the length of the run.
        out: Image file to write. The default is `figures/simulation.png` of the run.

    Raises:
        UserError: If no plant can be fitted, because the weight hardly moved.
    """
    folder = as_folder(run)
    experiment, records = folder.experiment(), folder.records()
    weighted = experiment.objective.controlled_quantity
    named_laws: dict[str, Law] = {
        str(law): law if isinstance(law, Law) else override(experiment, [f"control={law}"]).control
        for law in laws
    }
    try:
        plant = Plant.fit(records, term=weighted)
        length = steps or records[-1]["step"]
        logs = [simulate(law, plant, length, term=weighted) for law in named_laws.values()]
    except ValueError as error:
        raise UserError(f"{folder.path}: {error}") from None
    except OverflowError:
        raise UserError(
            f"{folder.path}: the weight moved too little in this log to show its effect"
        ) from None
    traces = [RunTrace(name, log, weighted) for name, log in zip(named_laws, logs, strict=True)]
    recorded = RunTrace("the run itself", records, weighted)
    path = save_figure(
        plot_simulation(traces, recorded),
        folder.figures / "simulation.png" if out is None else Path(out),
    )
    summary = [
        f"{weighted.upper()} = {plant.kl_at_one:.3g} β^-{plant.slope:.2f}, "
        f"a lag of {plant.lag:.0f} steps, noise {plant.noise:.1%}; "
        f"misses the log by {plant.misfit:.1%}",
        *(f"  {one.name:40s} {_describe_response(one)}" for one in [recorded, *traces]),
    ]
    return SimulationResult(plant, [recorded, *traces], _plant_warnings(plant), summary, path)


def _plant_warnings(plant: Plant) -> list[str]:
    warnings = []
    if plant.misfit > GOOD_MISFIT:
        warnings.append(
            f"note: a plant that misses its log by more than {GOOD_MISFIT:.0%} predicts badly"
        )
    if plant.weight_ratio < WIDE_WEIGHT_RATIO:
        warnings.append(
            f"note: β moved only by a factor of {plant.weight_ratio:.3g} in this log, so the "
            f"exponent {plant.slope:.2f} is uncertain; fit a run in which β moves by a factor of "
            f"{WIDE_WEIGHT_RATIO:g} or more, under PI or a warm-up"
        )
    return warnings


def _describe_response(trace: RunTrace) -> str:
    values, target = trace.column(trace.weighted), trace.column("target")
    end = f"ends at {values[-1]:.2f} nats, β {trace.column('beta')[-1]:.3g}"
    if not (target > 0).all():
        return end
    response = step_response(
        values, target, steps=trace.column("step"), start=0.0, band=_SETTLING_BAND
    )
    settled = "does not settle"
    if response.settling_time is not None:
        settled = f"within 5 % from step {response.settling_time:,.0f}"
    return f"{settled}, overshoot {response.overshoot:.0%}, {end}"
