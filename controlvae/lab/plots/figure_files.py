"""Figure and image files: writing them, and the training step recorded in them."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from controlvae.errors import UserError
from controlvae.lab.io import writing

_STEP_PREFIX = "controlvae step "  # start of the comment in an image file
_MAX_LABEL = 48  # letters of a name in a legend
_FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def save_figure(figure: Figure, path: Path | str, *, step: int | None = None) -> Path:
    """Write a figure as PNG (300 dpi), SVG or PDF, chosen by the suffix of the path.

    Args:
        figure: The figure to write.
        path: The file, whose name must have a suffix. Other formats of matplotlib work, too.
        step: The training step of the weights behind the figure, recorded in the file.

    Returns:
        The path.
    """
    path = Path(path)
    if not path.suffix:  # matplotlib would add one and write another file than was named
        name = path.name or "figure"
        raise UserError(
            f"cannot write {path}: expected a name that ends in {', '.join(_FIGURE_SUFFIXES)}, "
            f"e.g. {name}.png"
        )
    # Type 42 embeds whole TrueType fonts in a PDF, which journals ask for. A fixed salt makes the
    # element ids of an SVG reproducible.
    options = mpl.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "controlvae"})
    with writing(path) as temporary, options, plain_text(figure):
        figure.savefig(
            temporary,
            dpi=300,
            bbox_inches="tight",
            facecolor="white",
            metadata=_metadata(path.suffix.lower(), step),
        )
    return path


def _metadata(suffix: str, step: int | None) -> dict[str, Any] | None:
    """Return the metadata of a figure file: its step, and no date, so that files compare equal."""
    comment = None if step is None else format_step_comment(step)
    match suffix:
        case ".png":
            return None if comment is None else {"Comment": comment}
        case ".svg":
            return {"Date": None} | ({} if comment is None else {"Description": comment})
        case ".pdf":
            return {"CreationDate": None} | ({} if comment is None else {"Subject": comment})
    return None


def save_pixels(pixels: np.ndarray, path: Path, *, step: int | None = None) -> Path:
    """Write an array of bytes as an image file, pixel by pixel.

    Args:
        pixels: (height, width, 3) array of bytes.
        path: The image file.
        step: The training step of the weights behind the image. Only PNG files record it.

    Returns:
        The path.
    """
    info = PngInfo()
    if step is not None:
        info.add_text("Comment", format_step_comment(step))
    with writing(path) as temporary:
        Image.fromarray(pixels).save(temporary, pnginfo=info)
    return path


def format_step_comment(step: int) -> str:
    """Return the comment that records a training step in an image file."""
    return f"{_STEP_PREFIX}{step}"


def read_step(path: Path) -> int | None:
    """Return the training step recorded in a PNG or GIF file, or None if there is none."""
    try:
        with Image.open(path) as image:
            comment = image.info.get("Comment") or image.info.get("comment") or ""
    except OSError:
        return None
    comment = comment.decode(errors="replace") if isinstance(comment, bytes) else comment
    number = comment.removeprefix(_STEP_PREFIX)
    return int(number) if number != comment and number.isdecimal() else None


@contextlib.contextmanager
def plain_text(figure: Figure) -> Iterator[None]:
    """Draw the names of runs and factors as they are.

    Dollar signs make no formulas. A letter that the font lacks is drawn as a box, without a warning
    of matplotlib's.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def label_runs(names: Sequence[str]) -> list[str]:
    """Return names that fit into a legend: on one line, at most 48 letters, and distinct."""
    printable = ["".join(c if c.isprintable() else " " for c in name).strip() for name in names]
    half = _MAX_LABEL // 2 - 1
    labels = [
        name if len(name) <= _MAX_LABEL else f"{name[:half]}…{name[-half:]}" for name in printable
    ]
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} ({place})"
        for place, label in enumerate(labels, start=1)
    ]
