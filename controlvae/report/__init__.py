"""Reads run folders: metrics, pictures, curves, and the page that shows them."""

from controlvae.report.evaluate import evaluate
from controlvae.report.page import write_report
from controlvae.report.pictures import reconstructions, save_figure
from controlvae.report.trained import Trained, open_run
from controlvae.report.traversal import traversals

__all__ = ["Trained", "evaluate", "open_run", "reconstructions", "save_figure", "traversals", "write_report"]
