"""Pieces of HTML that the parts of a report share."""

import html
from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Rows of words, the first of them heads, and lines below them."""
    cells = [
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True)
    ]
    below = "<br>".join(map(html.escape, notes))
    rows_shown = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table>{rows_shown}</table></div><p class="quiet">{below}</p>'


def warning(line: str) -> str:
    """What a reader must not miss."""
    return f'<p class="warning">{html.escape(line)}</p>'
