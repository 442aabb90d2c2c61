"""Samples from the prior and interpolations between two examples."""

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from controlvae.lab.evaluation.image_input import ImageInput, interpolation_endpoints, resolve_image
from controlvae.lab.plots.image_grid import CELL_INCHES, draw_grid, tile_images, to_channels_last
from controlvae.lab.runs.loaded import LoadedRun, decode_codes, image_model, prior_codes

_MIN_IMAGE_SIDE = 64  # pixels; smaller images are enlarged by a whole factor


def make_sample_grid(
    run: LoadedRun, count: int = 64, *, seed: int = 0, columns: int | None = None
) -> np.ndarray:
    """Decode codes drawn from N(0, I) and arrange them in a grid.

    Args:
        run: The run whose decoder is used.
        count: Number of samples.
        seed: Seed of the codes.
        columns: Columns of the grid; by default it is as close to a square as possible.

    Returns:
        (height, width, 3) array of bytes, filled row by row, white after the last sample.
    """
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    images = decode_codes(run, prior_codes(run, count, seed))
    blank = images.new_ones(rows * columns - count, *images.shape[1:])
    grid = torch.cat([images, blank]).unflatten(0, (rows, columns))
    factor = math.ceil(_MIN_IMAGE_SIDE / run.examples.shape[2])
    pixels = (tile_images(to_channels_last(grid)) * 255).round().astype(np.uint8)
    return pixels.repeat(factor, 0).repeat(factor, 1)


@torch.no_grad()
def plot_interpolation(
    run: LoadedRun, start: int | str | None = None, end: int | str | None = None, columns: int = 10
) -> Figure:
    """Plot the decoded straight line between the posterior means of two images.

    The two images themselves are shown at the ends.

    Args:
        run: The run.
        start: First image, an index of an example or a file; by default a fixed random example.
        end: Last image, given in the same way.
        columns: Number of decoded images.
    """
    ends = select_endpoints(run, start, end)
    x = torch.stack([image.pixels for image in ends])
    first, last = image_model(run).encode(x).mean
    shares = torch.linspace(0, 1, columns, device=run.device)
    between = decode_codes(run, torch.lerp(first, last, shares.unsqueeze(1)))
    row = torch.cat([x[:1], between, x[1:]]).unsqueeze(0)
    labels = [f"data\n{image.short}" for image in ends]
    names = [labels[0], *(f"{share:.2f}" for share in shares.tolist()), labels[1]]
    size = (CELL_INCHES * len(names) + 0.4, CELL_INCHES + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    draw_grid(figure.subplots(), to_channels_last(row), [""], names, fontsize=6)
    return figure


def select_endpoints(
    run: LoadedRun, start: int | str | None, end: int | str | None
) -> tuple[ImageInput, ImageInput]:
    """Load the two images of an interpolation.

    Args:
        run: The run.
        start: Index of an example, a file, or None for a fixed random example.
        end: The same for the second image.
    """
    defaults = interpolation_endpoints(run, None, None) if None in (start, end) else (0, 0)
    first, last = (
        default if image is None else image
        for image, default in zip((start, end), defaults, strict=True)
    )
    return resolve_image(run, first, "--from"), resolve_image(run, last, "--to")
