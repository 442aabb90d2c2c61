"""Printing of results: tables, Markdown, files and texts."""

import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from controlvae.lab.api.media import MediaResult
from controlvae.lab.reports.metrics_table import print_metrics, wide_console

__all__ = ["print_columns", "print_markdown", "print_media", "print_metrics", "print_unknown_words"]


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is never wrapped."""
    table = Table(box=None, pad_edge=False)
    for name in headings:
        table.add_column(name, no_wrap=name == headings[0])
    for row in rows:
        table.add_row(*row)
    wide_console(160).print(table)


def print_markdown(text: str) -> None:
    """Print Markdown, rendered in a terminal and as it is in a file."""
    Console().print(Markdown(text)) if sys.stdout.isatty() else typer.echo(text)


def print_media(result: MediaResult) -> None:
    """Print the files that were written, or the text of a model of sentences."""
    print_unknown_words(result.unknown_words)
    for file in result.files:
        typer.echo(file)
    if not result.files and result.text is not None:
        typer.echo(result.text)


def print_unknown_words(words: Sequence[str]) -> None:
    """Print the words of the user that a model does not know."""
    if words:
        typer.echo(f"(unknown words: {', '.join(words)})", err=True)
