"""Tables and figures in the form that the templates of a report show them."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from controlvae.lab.plots.figure_files import plain_text, read_step

_MAX_RUN_COLUMNS = 5  # more runs become rows of a table
_MAX_PRINTED_COLUMNS = 12  # on upright paper


class Cell(NamedTuple):
    """A cell of a table as it is shown."""

    text: str
    is_best: bool = False


@dataclass(frozen=True)
class TableView:
    """A table with one row per run, and notes on how its numbers were measured.

    Attributes:
        title: Title of the section.
        heads: Names of the columns.
        rows: Cells of each run; the first is its name.
        notes: How the numbers were measured.
        best: Row and column of each cell that is the best of its column.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()

    @property
    def is_transposed(self) -> bool:
        """True if runs are shown as columns, which keeps a table of few runs narrow."""
        return len(self.rows) <= _MAX_RUN_COLUMNS and len(self.heads) > len(self.rows) + 1

    @property
    def is_broad(self) -> bool:
        """True if the table is printed on a page that lies on its side."""
        return len(self.shown[0]) > _MAX_PRINTED_COLUMNS

    @property
    def shown(self) -> list[list[Cell]]:
        """The cells in the orientation they are shown in; the first row has the heads."""
        cells = [[Cell(head) for head in self.heads]]
        for row, texts in enumerate(self.rows):
            cells.append(
                [Cell(text, (row, place) in self.best) for place, text in enumerate(texts)]
            )
        return [list(row) for row in zip(*cells, strict=True)] if self.is_transposed else cells


@dataclass(frozen=True)
class FigureView:
    """A figure or image with its caption, embedded in the page."""

    content: Markup
    caption: str


class FigureEmbedder:
    """Embeds figures as inline SVG, with element ids that are unique within the page."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def embed(self, figure: Figure, caption: str) -> FigureView:
        """Render a figure as inline SVG, which is sharp at any size and needs no other file."""
        buffer = io.StringIO()
        # A fixed salt and no date: the same runs give the same page.
        with mpl.rc_context({"svg.hashsalt": "controlvae"}), plain_text(figure):
            figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :]
        # Figures share ids such as clip paths. In a page the first one would serve them all, even
        # if it is in a folded section.
        svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>f{next(self._numbers)}-", svg)
        # The whole caption follows as text, and would be read aloud twice.
        name = caption.partition(". ")[0]
        opening = Markup('<svg role="img" aria-label="{}" ').format(name)
        return FigureView(Markup(svg.replace("<svg ", opening, 1)), caption)


def embed_image(path: Path, caption: str) -> FigureView:
    """Embed an image file, with the training step recorded in it added to the caption.

    Images in a run folder may be older than its newest checkpoint.
    """
    step = read_step(path)
    caption = caption if step is None else f"{caption} At step {step:,}."
    return _embed_bytes(path.read_bytes(), path.suffix[1:].lower(), caption)


def embed_raster(figure: Figure, caption: str) -> FigureView:
    """Render a figure of images as PNG."""
    buffer = io.BytesIO()
    with plain_text(figure):
        figure.savefig(buffer, format="png", dpi=200, facecolor="white", bbox_inches="tight")
    return _embed_bytes(buffer.getvalue(), "png", caption)


def _embed_bytes(content: bytes, kind: str, caption: str) -> FigureView:
    encoded = base64.b64encode(content).decode()
    source = f"data:image/{kind};base64,{encoded}"
    return FigureView(
        Markup('<img loading="lazy" alt="{}" src="{}">').format(caption, source), caption
    )


def join_names(names: Sequence[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
