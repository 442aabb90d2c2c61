"""A traversal that moves: one picture per latent, all of them going there and back together, as a GIF without end."""

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from controlvae.lab.io import writing
from controlvae.lab.plots.image_grid import describe_step
from controlvae.lab.plots.traversal import Traversal, signed, traverse
from controlvae.lab.runs.loaded import LoadedRun

_FRAMES, _MILLISECONDS = 60, 50
_CELL, _PAD, _LABEL, _SLIDER = 128, 14, 38, 48  # pixels
_ACROSS = 5  # pictures in a line
_MOST = 10  # latents shown: more make a file too large for a page
_GREYS = 16  # fewer greys, smaller file: edges of shapes are all the grey there is
_INK, _QUIET = 40, 120


def animate(
    run: LoadedRun,
    path: Path,
    *,
    image: str | int | None = None,
    reach: float = 3.0,
    rows: int = _MOST,
) -> Path:
    """Writes the GIF of a run's latents of largest KL, `rows` of them and ten at most."""
    # A cosine comes to rest at both ends, and its way back is its way there: half the frames are decoded.
    values = -reach * np.cos(math.pi * np.arange(_FRAMES // 2 + 1) / (_FRAMES // 2))
    shown = traverse(run, image, values, min(rows, _MOST))
    there = [_frame(shown, column, reach) for column in range(len(values))]
    frames = there + there[-2:0:-1]
    with writing(path) as beside:
        said = describe_step(run.step).encode()
        frames[0].save(
            beside,
            save_all=True,
            append_images=frames[1:],
            duration=_MILLISECONDS,
            loop=0,
            comment=said,
        )
    return path


def _frame(shown: Traversal, column: int, reach: float) -> Image.Image:
    """Every latent at one value: pictures with their names above, the value on a slider below."""
    count = len(shown.latents)
    lines, across = math.ceil(count / _ACROSS), min(_ACROSS, count)
    width, height = across * (_CELL + _PAD) + _PAD, lines * (_CELL + _LABEL + _PAD) + _SLIDER
    grey = shown.pictures.shape[-1] == 1
    frame = Image.new("L" if grey else "RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(frame), _font(12)
    for row, (name, kl) in enumerate(zip(shown.names(), shown.kl, strict=True)):
        left, top = (
            _PAD + row % _ACROSS * (_CELL + _PAD),
            row // _ACROSS * (_CELL + _LABEL + _PAD) + _LABEL,
        )
        frame.paste(_cell(shown.pictures[row, column]), (left, top))
        draw.text((left, top - 20), name, fill=_ink(_INK, grey), font=font, anchor="ls")
        draw.text(
            (left, top - 5), f"{kl:.2f} nats", fill=_ink(_QUIET, grey), font=font, anchor="ls"
        )
    _slider(draw, shown.values[column], reach, (width, height), grey)
    return frame


def _cell(picture: np.ndarray) -> Image.Image:
    pixels = (picture.clip(0, 1) * 255).astype(np.uint8)
    cell = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    smooth = np.asarray(cell.resize((_CELL, _CELL), Image.Resampling.BICUBIC)) / 255
    return Image.fromarray((np.round(smooth * (_GREYS - 1)) / (_GREYS - 1) * 255).astype(np.uint8))


def _slider(
    draw: ImageDraw.ImageDraw, value: float, reach: float, size: tuple[int, int], grey: bool
) -> None:
    (width, height), font = size, _font(12)
    left, right, y = 0.25 * width, 0.75 * width, height - 0.62 * _SLIDER
    draw.line((left, y, right, y), fill=_ink(_QUIET, grey), width=2)
    x = left + (value + reach) / (2 * reach) * (right - left)
    draw.rectangle((x - 2, y - 8, x + 2, y + 8), fill=_ink(_INK, grey))
    for edge, place, anchor in ((-reach, left - 12, "rm"), (reach, right + 12, "lm")):
        draw.text((place, y), signed(edge), fill=_ink(_QUIET, grey), font=font, anchor=anchor)
    # Two decimals: every frame differs from the next, so none is merged with it.
    draw.text(
        (width / 2, y + 22),
        f"latent at {signed(value, 2)}",
        fill=_ink(_INK, grey),
        font=font,
        anchor="mm",
    )


def _ink(level: int, grey: bool) -> int | tuple[int, int, int]:
    return level if grey else (level, level, level)


def _font(size: int) -> ImageFont.FreeTypeFont:
    """The font of the figures, which comes with matplotlib."""
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
