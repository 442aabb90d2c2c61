"""Sections of a report: curves of all runs, compared images, and details of each run."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from controlvae.lab.config import PRESETS, Experiment, to_dict
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.plots.curves import (
    RunTrace,
    plot_beta,
    plot_controlled_term,
    plot_critic_accuracy,
    plot_latent_kl,
    plot_reconstruction,
)
from controlvae.lab.plots.image_grid import (
    plot_compared_reconstructions,
    reconstruction_pixels_file,
)
from controlvae.lab.plots.mutual_information import (
    describe_dominant_factor,
    dominant_factors,
    plot_mutual_information,
)
from controlvae.lab.reports.comparison_tables import batch_estimate_note
from controlvae.lab.reports.dialog_section import DialogView, dialog_view
from controlvae.lab.reports.notes import describe_data
from controlvae.lab.reports.report_run import ReportRun
from controlvae.lab.reports.views import (
    FigureEmbedder,
    FigureView,
    embed_image,
    embed_raster,
    join_names,
)
from controlvae.laws.log_domain import LogDomainFeedback

# A page of more runs shows what they share, so that it opens at once: a run takes up to 0.4 MB.
MAX_DETAILED_RUNS = 16
_SAMPLES_CAPTION = "Decoded from the prior N(0, I)."
_RECONSTRUCTIONS_CAPTION = "Data above, reconstructions from the posterior mean below."
# Images that a run folder may have, by the names of their files.
_RUN_IMAGES = {
    "curve.png": "Rate-distortion curve of the network, measured at each rate.",
    "curve-images.png": "Reconstructions and samples along the curve.",
    "interpolation*.png": "Straight line in latent space between two examples, shown at the ends.",
    "traversal*.png": "Each row moves one latent and keeps the others; rows are ordered by KL.",
    "traversal*.gif": "The traversal animated: each image moves one latent back and forth.",
}
_RECONSTRUCTION_CAPTION = (
    "Reconstruction error on the training batches; dashed, its target where a law has one."
)
_LENGTHS_CAPTION = (
    "A batch of text has sentences of similar length, so the error varies with their length."
)
_CRITIC_CAPTION = (
    "Accuracy of the critic in telling joint from shuffled latents; near 0.5 it cannot. Its total "
    "correlation is an estimate, not a bound: a critic that lags behind may give values below "
    "zero, which the law uses unchanged."
)


@dataclass(frozen=True)
class RunSection:
    """Details of one run."""

    name: str
    anchor: str
    description: str
    figures: list[FigureView]
    folded: list[FigureView]  # figures behind a summary line
    dialog: DialogView | None
    settings: str
    versions: str


@dataclass(frozen=True)
class ImageSection:
    """Images of all runs, arranged for comparison."""

    wide: list[FigureView] = field(default_factory=list)
    grids: list[FigureView] = field(default_factory=list)


def curve_figures(runs: Sequence[ReportRun], embedder: FigureEmbedder) -> list[FigureView]:
    """Plot the controlled terms, β and the reconstruction error of all runs."""
    logged = [run for run in runs if run.records]
    traces = [run.trace for run in logged]
    if not traces:
        return []
    if len(runs) > MAX_DETAILED_RUNS:  # one colour for each preset
        traces = [replace(run.trace, name=run.experiment.name) for run in logged]
    figures = []
    for column in ("kl", "tc"):
        measured = [trace for trace in traces if column in trace.records[-1]]
        if not measured:
            continue
        name = QUANTITY_LABELS[column]
        caption = (
            f"{name[0].upper()}{name[1:]} on the training batches; dashed, its target. "
            f"A point is the mean over one log interval."
        )
        caption += _batch_estimate_notes(measured) if column == "tc" else ""
        figures.append(embedder.embed(plot_controlled_term(measured, column), caption))
    if len(logged) == 1:
        figures.append(_beta_figure(logged[0], embedder))
    else:
        figures.append(embedder.embed(plot_beta(traces), "The weight β of each run."))
    is_text = any(run.experiment.objective.likelihood == "tokens" for run in logged)
    caption = f"{_RECONSTRUCTION_CAPTION} {_LENGTHS_CAPTION if is_text else ''}".strip()
    figures.append(embedder.embed(plot_reconstruction(traces), caption))
    return figures


def _batch_estimate_notes(traces: Sequence[RunTrace]) -> str:
    """Return one sentence for each way in which total correlations were estimated in batches."""
    names: dict[str, list[str]] = {}
    for trace in traces:
        if (note := batch_estimate_note(trace)) is not None:
            names.setdefault(note, []).append(trace.name)
    return "".join(f" For {join_names(each)}, {note}." for note, each in names.items())


def _beta_figure(run: ReportRun, embedder: FigureEmbedder) -> FigureView:
    logarithmic = isinstance(run.experiment.control, LogDomainFeedback)
    terms = " and its two terms" if _has_terms(run) else ""
    caption = f"The weight β of the {QUANTITY_LABELS[run.trace.weighted]}{terms}."
    return embedder.embed(plot_beta([run.trace], logarithmic), caption)


def _has_terms(run: ReportRun) -> bool:
    """Return True if the log has proportional and integral terms that add up to β."""
    law = run.experiment.control
    return not law.open_loop and not isinstance(law, LogDomainFeedback)


def image_section(runs: Sequence[ReportRun]) -> ImageSection:
    """Arrange reconstructions below one row of data, and samples next to each other.

    Of more than `MAX_DETAILED_RUNS` runs, the first are shown.
    """
    runs = runs[:MAX_DETAILED_RUNS]
    wide = _compared_reconstructions(runs)
    if wide is None:
        wide = [
            embed_image(path, _caption(runs, run, _RECONSTRUCTIONS_CAPTION))
            for run in runs
            for path in sorted(run.folder.figures.glob("reconstruction.png"))
        ]
    grids = [
        embed_image(path, _caption(runs, run, _SAMPLES_CAPTION))
        for run in runs
        for path in sorted(run.folder.figures.glob("samples*.png"))
    ]
    return ImageSection(wide, grids)


def _caption(runs: Sequence[ReportRun], run: ReportRun, caption: str) -> str:
    return caption if len(runs) == 1 else f"{run.name}. {caption}"


def _compared_reconstructions(runs: Sequence[ReportRun]) -> list[FigureView] | None:
    """Plot reconstructions of all runs below one row of data.

    Returns:
        None if there is only one run, if the runs have different data, or if one of them was
        evaluated by a version that did not save the pixels.
    """
    with_images = [run for run in runs if (run.folder.figures / "reconstruction.png").is_file()]
    files = {
        run.trace.name: reconstruction_pixels_file(run.folder.figures / "reconstruction.png")
        for run in with_images
    }
    if len(files) < 2 or not all(path.is_file() for path in files.values()):
        return None
    figure = plot_compared_reconstructions(files)
    if figure is None:
        return None
    caption = "Data in the first row, reconstructions from the posterior mean of each run below."
    return [embed_raster(figure, caption)]


def run_sections(runs: Sequence[ReportRun], embedder: FigureEmbedder) -> Iterable[RunSection]:
    """Yield the details of each run: those that the shared figures and tables do not show.

    Of more than `MAX_DETAILED_RUNS` runs, the figures are left to the reports of single runs.
    """
    for number, run in enumerate(runs, start=1):
        if len(runs) > MAX_DETAILED_RUNS:
            yield _run_section(run, f"run-{number}", [], [])
        else:
            figures = _run_figures(run, embedder)
            has_beta_figure = len(runs) > 1 and bool(run.records) and _has_terms(run)
            folded = [_beta_figure(run, embedder)] if has_beta_figure else []
            yield _run_section(run, f"run-{number}", figures, folded)


def _run_figures(run: ReportRun, embedder: FigureEmbedder) -> list[FigureView]:
    """Plot what only one run has: its latents, its critic and its images."""
    figures = []
    factors = dominant_factors(run.metrics)
    if run.records:
        caption = "KL of each latent; an active latent rises from zero."
        if factors:
            named = describe_dominant_factor(run.metrics)
            caption += f" At step {run.metrics['step']:,} a latent is named by {named}."
        figures.append(embedder.embed(plot_latent_kl(run.trace, factors), caption))
        if "critic_accuracy" in run.records[-1]:
            figures.append(embedder.embed(plot_critic_accuracy(run.trace), _CRITIC_CAPTION))
    if (heat_map := plot_mutual_information(run.metrics)) is not None:
        caption = "Mutual information of each factor with each latent; latents are ordered by KL."
        figures.append(embedder.embed(heat_map, caption))
    for pattern, caption in _RUN_IMAGES.items():
        paths = sorted(run.folder.figures.glob(pattern))
        figures += [embed_image(path, caption) for path in paths]
    return figures


def _run_section(
    run: ReportRun, anchor: str, figures: list[FigureView], folded: list[FigureView]
) -> RunSection:
    manifest = run.folder.manifest()
    return RunSection(
        run.name,
        anchor,
        _describe_run(run),
        figures,
        folded,
        dialog_view(run.metrics["dialog"]) if "dialog" in run.metrics else None,
        _format_settings(run.experiment),
        ", ".join(f"{name} {number}" for name, number in manifest.get("versions", {}).items()),
    )


def _format_settings(experiment: Experiment) -> str:
    """Return settings as JSON with lists of numbers or names on one line."""
    text = json.dumps(to_dict(experiment), indent=2, ensure_ascii=False)
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)


def _describe_run(run: ReportRun) -> str:
    """Describe the experiment, by the text of its preset if only seed and length were changed."""
    experiment, named = run.experiment, PRESETS.get(run.experiment.name)
    is_preset = named is None or replace(experiment, training=named.training) == named
    about = (
        experiment.about
        if is_preset
        else f"The preset {experiment.name} with other settings, listed below."
    )
    source = run.metrics.get("data")
    data = f"{describe_data(experiment)}{f', {source}' if source else ''}"
    about = f"{about[:1].upper()}{about[1:].rstrip('.')}. " if about else ""
    return f"{about}Data: {data}."
