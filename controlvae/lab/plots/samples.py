"""Pictures nobody took: drawn from the prior, and between two examples."""

import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from controlvae.lab.evaluation.image_input import Chosen, chosen, endpoints
from controlvae.lab.io import writing
from controlvae.lab.plots.image_grid import CELL, channels_last, describe_step, draw_grid, mosaic
from controlvae.lab.runs.loaded import LoadedRun, decoded, picture_model, prior_codes

_SMALLEST = 64  # pixels a picture is shown with; smaller ones are enlarged by a whole number


def samples(
    run: LoadedRun, count: int = 64, *, seed: int = 0, columns: int | None = None
) -> np.ndarray:
    """A grid of decoded draws from N(0, I), row by row, white after the last: (height, width, 3) of bytes."""
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    pictures = decoded(run, prior_codes(run, count, seed))
    blank = pictures.new_ones(rows * columns - count, *pictures.shape[1:])
    grid = torch.cat([pictures, blank]).unflatten(0, (rows, columns))
    enlarge = math.ceil(_SMALLEST / run.examples.shape[2])
    whole = (mosaic(channels_last(grid)) * 255).round().astype(np.uint8)
    return whole.repeat(enlarge, 0).repeat(enlarge, 1)


def save_pixels(pixels: np.ndarray, path: Path, *, step: int | None = None) -> Path:
    """Writes a picture as it is, pixel by pixel; a PNG with the step that it is of, where that is given."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    said = PngInfo()
    if step is not None:
        said.add_text("Comment", describe_step(step))
    with writing(path) as beside:
        Image.fromarray(pixels).save(beside, pnginfo=said)  # which other kinds of files leave out
    return path


@torch.no_grad()
def interpolation(
    run: LoadedRun, start: int | str | None = None, end: int | str | None = None, columns: int = 10
) -> Figure:
    """On the straight line between the posterior means of two pictures, which stand at its ends.

    A picture is an example, by its index, or a file.
    """
    ends = two_pictures(run, start, end)
    x = torch.stack([picture.pixels for picture in ends])
    first, last = picture_model(run).encode(x).mean
    shares = torch.linspace(0, 1, columns, device=run.device)
    between = decoded(run, torch.lerp(first, last, shares.unsqueeze(1)))
    row = torch.cat([x[:1], between, x[1:]]).unsqueeze(0)
    labels = [f"data\n{picture.short}" for picture in ends]
    names = [labels[0], *(f"{share:.2f}" for share in shares.tolist()), labels[1]]
    figure = Figure(figsize=(CELL * len(names) + 0.4, CELL + 0.4), layout="constrained")
    draw_grid(figure.subplots(), channels_last(row), [""], names, fontsize=6)
    return figure


def two_pictures(
    run: LoadedRun, start: int | str | None, end: int | str | None
) -> tuple[Chosen, Chosen]:
    """The pictures to go between: by index or file, or else examples of a fixed random choice."""
    others = endpoints(run, None, None) if None in (start, end) else (0, 0)
    first, last = (
        other if given is None else given for given, other in zip((start, end), others, strict=True)
    )
    return chosen(run, first, "--from"), chosen(run, last, "--to")
