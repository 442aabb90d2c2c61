"""Pictures in rows: how a grid of them is drawn and saved, and reconstructions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.io import writing
from controlvae.lab.runs.loaded import LoadedRun, on_unseen_examples, picture_model, some_examples

CELL = 0.44  # inches a picture takes up, its gap included
_GAP = 1 / 16  # between pictures, as a share of their size
_STEP = "controlvae step "  # how the comment in a picture's file begins


def as_written(figure: Figure) -> None:
    """A dollar sign in the name of a run or a factor is one, and no formula begins with it."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)


def save_figure(figure: Figure, path: Path | str, *, step: int | None = None) -> Path:
    """Writes a figure finely enough to print; a PNG with the step that it is of, where that is given."""
    path = Path(path)
    if not path.suffix:  # matplotlib would add one, and the file be another
        raise UserError(
            f"cannot write {path}: give it an ending, such as {path.name or 'picture'}.png"
        )
    as_written(figure)
    said = (
        {"Comment": describe_step(step)}
        if step is not None and path.suffix.lower() == ".png"
        else None
    )
    with writing(path) as beside:
        figure.savefig(beside, dpi=300, bbox_inches="tight", facecolor="white", metadata=said)
    return path


def describe_step(step: int) -> str:
    """What a picture's file says of the weights it was made with."""
    return f"{_STEP}{step}"


def drawn_at(path: Path) -> int | None:
    """The step of the weights that a picture was made with, where its file says so."""
    try:
        with Image.open(path) as picture:
            said = picture.info.get("Comment") or picture.info.get("comment") or ""
    except OSError:
        return None
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    number = said.removeprefix(_STEP)
    return int(number) if number != said and number.isdecimal() else None


@torch.no_grad()
def reconstructions(run: LoadedRun, columns: int = 12) -> Figure:
    """Examples above, of the test part where it is at hand; their reconstructions (from the posterior mean) below."""
    run = on_unseen_examples(run)
    x = run.examples.batch(some_examples(run, columns))
    rebuilt = torch.sigmoid(picture_model(run).decode(run.model.encode(x).mean))
    figure = Figure(figsize=(CELL * len(x) + 1.2, 2 * CELL + 0.4), layout="constrained")
    axis = figure.subplots()
    draw_grid(axis, channels_last(torch.stack([x, rebuilt])), ["data", "reconstruction"])
    axis.set_xlabel(run.examples.split, fontsize=8)
    return figure


def channels_last(pictures: torch.Tensor) -> np.ndarray:
    """(rows, columns, channels, height, width) as matplotlib and pillow want them: grey or RGB.

    Where the channels are two or four, the last is taken for opacity, and the picture laid on white.
    """
    shown = pictures.permute(0, 1, 3, 4, 2).float().cpu().numpy()
    return shown if shown.shape[-1] % 2 else 1 - shown[..., -1:] * (1 - shown[..., :-1])


def draw_grid(
    axis: Axes,
    pictures: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str] = (),
    *,
    fontsize: float = 8,
) -> None:
    """Pictures with a name to the left of each row and below each column: (rows, columns, height, width, channels)."""
    height, width = pictures.shape[2:4]
    down, across = height + round(_GAP * height), width + round(_GAP * width)
    axis.imshow(mosaic(pictures), vmin=0, vmax=1)
    axis.set_yticks([row * down + height / 2 for row in range(len(rows))], rows, fontsize=fontsize)
    axis.set_xticks(
        [column * across + width / 2 for column in range(len(columns))], columns, fontsize=fontsize
    )
    axis.tick_params(length=0, pad=3)
    axis.spines[:].set_visible(False)


def mosaic(pictures: np.ndarray) -> np.ndarray:
    """(rows, columns, height, width, channels) in [0, 1] as one RGB picture with white between."""
    rows, columns, height, width, _ = pictures.shape
    down, across = round(_GAP * height), round(_GAP * width)
    padded = np.pad(pictures, ((0, 0), (0, 0), (0, down), (0, across), (0, 0)), constant_values=1.0)
    whole = padded.transpose(0, 2, 1, 3, 4).reshape(
        rows * (height + down), columns * (width + across), -1
    )
    whole = whole[: whole.shape[0] - down, : whole.shape[1] - across].clip(0, 1)
    return np.broadcast_to(whole, (*whole.shape[:2], 3))
