"""Animated latent traversals, written as a looping GIF."""

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from controlvae.lab.io import writing
from controlvae.lab.plots.figure_files import format_step_comment
from controlvae.lab.plots.traversal import Traversal, format_signed, traverse_latents
from controlvae.lab.runs.loaded import LoadedRun

_FRAMES, _FRAME_MILLISECONDS = 60, 50
_CELL, _PADDING, _LABEL_HEIGHT, _SLIDER_HEIGHT = 128, 14, 38, 48  # pixels
_COLUMNS = 5
_MAX_LATENTS = 10  # more make a file too large for a report
_GREY_LEVELS = 16  # few levels compress better, and only the edges of shapes are grey
_INK, _QUIET_INK = 40, 120


def animate_traversal(
    run: LoadedRun,
    path: Path,
    *,
    image: str | int | None = None,
    reach: float = 3.0,
    rows: int = _MAX_LATENTS,
) -> Path:
    """Write a GIF in which the latents of largest KL move back and forth together.

    Args:
        run: The run.
        path: The GIF file.
        image: Start image, as in `traverse_latents`.
        reach: Each latent moves between -reach and reach.
        rows: Number of latents, at most ten.

    Returns:
        The path.
    """
    # A cosine slows down at both ends, and the way back mirrors the way there: half the frames
    # are decoded.
    values = -reach * np.cos(math.pi * np.arange(_FRAMES // 2 + 1) / (_FRAMES // 2))
    traversal = traverse_latents(run, image, values, min(rows, _MAX_LATENTS))
    forward = [_draw_frame(traversal, column, reach) for column in range(len(values))]
    frames = forward + forward[-2:0:-1]
    with writing(path) as temporary:
        frames[0].save(
            temporary,
            save_all=True,
            append_images=frames[1:],
            duration=_FRAME_MILLISECONDS,
            loop=0,
            comment=format_step_comment(run.step).encode(),
        )
    return path


def _draw_frame(traversal: Traversal, column: int, reach: float) -> Image.Image:
    """Draw all latents at one value: labelled images above a slider that shows the value."""
    count = len(traversal.latents)
    lines, across = math.ceil(count / _COLUMNS), min(_COLUMNS, count)
    cell_height = _LABEL_HEIGHT + _CELL + _PADDING
    width = across * (_CELL + _PADDING) + _PADDING
    height = lines * cell_height + _SLIDER_HEIGHT
    is_grey = traversal.images.shape[-1] == 1
    frame = Image.new("L" if is_grey else "RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(frame), _load_font(12)
    for row, (name, kl) in enumerate(zip(traversal.names(), traversal.kl, strict=True)):
        left = _PADDING + row % _COLUMNS * (_CELL + _PADDING)
        top = row // _COLUMNS * cell_height + _LABEL_HEIGHT
        frame.paste(_draw_cell(traversal.images[row, column]), (left, top))
        ink, quiet = _ink(_INK, is_grey), _ink(_QUIET_INK, is_grey)
        draw.text((left, top - 20), name, fill=ink, font=font, anchor="ls")
        draw.text((left, top - 5), f"{kl:.2f} nats", fill=quiet, font=font, anchor="ls")
    _draw_slider(draw, traversal.values[column], reach, (width, height), is_grey)
    return frame


def _draw_cell(image: np.ndarray) -> Image.Image:
    pixels = (image.clip(0, 1) * 255).astype(np.uint8)
    cell = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    smooth = np.asarray(cell.resize((_CELL, _CELL), Image.Resampling.BICUBIC)) / 255
    steps = _GREY_LEVELS - 1
    return Image.fromarray((np.round(smooth * steps) / steps * 255).astype(np.uint8))


def _draw_slider(
    draw: ImageDraw.ImageDraw, value: float, reach: float, size: tuple[int, int], is_grey: bool
) -> None:
    (width, height), font = size, _load_font(12)
    ink, quiet = _ink(_INK, is_grey), _ink(_QUIET_INK, is_grey)
    left, right, y = 0.25 * width, 0.75 * width, height - 0.62 * _SLIDER_HEIGHT
    draw.line((left, y, right, y), fill=quiet, width=2)
    x = left + (value + reach) / (2 * reach) * (right - left)
    draw.rectangle((x - 2, y - 8, x + 2, y + 8), fill=ink)
    for end, place, anchor in ((-reach, left - 12, "rm"), (reach, right + 12, "lm")):
        draw.text((place, y), format_signed(end), fill=quiet, font=font, anchor=anchor)
    # Two decimals make every frame differ from the next. Pillow merges equal frames.
    label = f"latent at {format_signed(value, 2)}"
    draw.text((width / 2, y + 22), label, fill=ink, font=font, anchor="mm")


def _ink(level: int, is_grey: bool) -> int | tuple[int, int, int]:
    return level if is_grey else (level, level, level)


def _load_font(size: int) -> ImageFont.FreeTypeFont:
    """Load the font of the figures, which comes with matplotlib."""
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
