"""Reads run folders: metrics, pictures, curves, and the page that shows them."""

from controlvae.lab.evaluation.evaluate import evaluate, suffices
from controlvae.lab.plots.curves import Trace, simulation_figure
from controlvae.lab.plots.image_grid import reconstructions, save_figure
from controlvae.lab.plots.samples import interpolation, samples, save_pixels
from controlvae.lab.plots.traversal import traversals
from controlvae.lab.reports.page import write_report
from controlvae.lab.runs.loaded import Trained, best_by_validation, open_run

__all__ = [
    "Trace",
    "Trained",
    "best_by_validation",
    "evaluate",
    "interpolation",
    "open_run",
    "reconstructions",
    "samples",
    "save_figure",
    "save_pixels",
    "simulation_figure",
    "suffices",
    "traversals",
    "write_report",
]
