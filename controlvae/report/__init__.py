"""Reads run folders: metrics, pictures, curves, and the page that shows them."""

from controlvae.report.evaluate import evaluate, suffices
from controlvae.report.figures import Trace, simulation_figure
from controlvae.report.page import write_report
from controlvae.report.pictures import reconstructions, save_figure
from controlvae.report.samples import interpolation, samples, save_pixels
from controlvae.report.trained import Trained, best_by_validation, open_run
from controlvae.report.traversal import traversals

__all__ = [
    "Trace", "Trained", "best_by_validation", "evaluate", "interpolation", "open_run", "reconstructions", "samples",
    "save_figure", "save_pixels", "simulation_figure", "suffices", "traversals", "write_report",
]  # fmt: skip
