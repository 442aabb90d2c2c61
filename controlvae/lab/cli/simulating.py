"""`simulate`: what other laws would have done with the model of a run."""

from pathlib import Path

import typer

from controlvae.errors import UserError
from controlvae.lab.config import override
from controlvae.lab.plots.curves import Trace, plot_simulation
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Law
from controlvae.metrics import step_response
from controlvae.simulation import WELL, WIDE, Plant
from controlvae.simulation import simulate as run_law

_BAND = 0.05  # narrower than this, a network that goes on learning decides, and the plant knows nothing of that


def simulate(run: Path, laws: list[str], steps: int | None, out: Path | None) -> None:
    """Fits a plant to a run's log, tries each law on it, prints how they settle, and draws them."""
    folder = RunFolder(run)
    experiment, records = folder.experiment(), folder.records()
    held = experiment.objective.controlled_quantity
    tried: dict[str, Law] = {
        text: override(experiment, [f"control={text}"]).control for text in laws
    }
    try:
        plant = Plant.fit(records, held=held)
        found = [
            run_law(law, plant, steps or records[-1]["step"], held=held) for law in tried.values()
        ]
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None
    except OverflowError:
        raise UserError(
            f"{run}: the weight moved too little in this log for its effect to show"
        ) from None
    typer.echo(
        f"{held.upper()} = {plant.kl_at_one:.3g} β^-{plant.slope:.2f}, a lag of {plant.lag:.0f} steps, "
        f"noise {plant.noise:.1%}; misses the log by {plant.misfit:.1%}"
    )
    if plant.misfit > WELL:
        typer.echo(
            f"controlvae: note: above {WELL:.0%} such a model has not predicted well; believe little of it",
            err=True,
        )
    if plant.moved < WIDE:
        typer.echo(
            f"controlvae: note: β moved by a factor of {plant.moved:.3g} only in this log, so the power "
            f"{plant.slope:.2f} is hardly known; fit a run where it moves by {WIDE:g} or more, under PI or a warm-up",
            err=True,
        )
    traces = [Trace(text, log, held) for text, log in zip(tried, found, strict=True)]
    real = Trace("the run itself", records, held)
    for trace in [real, *traces]:
        typer.echo(f"  {trace.name:40s} {_words(trace)}")
    typer.echo(save_figure(plot_simulation(traces, real), out or folder.figures / "simulation.png"))


def _words(trace: Trace) -> str:
    target = trace.column("target")
    end = f"ends at {trace.column(trace.weighted)[-1]:.2f} nats, β {trace.column('beta')[-1]:.3g}"
    if not (target > 0).all():
        return end
    found = step_response(
        trace.column(trace.weighted), target, steps=trace.column("step"), start=0.0, band=_BAND
    )
    settled = (
        "does not settle"
        if found.settling_time is None
        else f"within 5 % from step {found.settling_time:,.0f}"
    )
    return f"{settled}, overshoot {found.overshoot:.0%}, {end}"
