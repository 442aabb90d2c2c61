"""HTML reports on runs: verdict, figures and tables, read from run folders."""

from controlvae.lab.reports.page import write_report

__all__ = ["write_report"]
