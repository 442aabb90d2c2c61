"""Grids of images, and reconstructions drawn as such grids."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from controlvae.lab.plots.figure_files import save_figure, save_pixels
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_pixels,
    decode_codes,
    image_model,
    on_unseen_examples,
    select_examples,
)

CELL_INCHES = 0.44  # size of an image in a figure, including its gap
_GAP = 1 / 16  # between images, as a fraction of their size
_RECONSTRUCTIONS = 12  # examples shown unless the caller asks for another number


def plot_reconstructions(run: LoadedRun, columns: int = _RECONSTRUCTIONS) -> Figure:
    """Plot examples above their reconstructions from the posterior mean.

    The examples are from the test set where it is available.
    """
    images, split = _reconstruct(run, columns)
    figure = Figure(
        figsize=(CELL_INCHES * images.shape[1] + 1.2, 2 * CELL_INCHES + 0.4), layout="constrained"
    )
    axis = figure.subplots()
    draw_grid(axis, images, ["data", "reconstruction"])
    axis.set_xlabel(split, fontsize=8)
    return figure


def save_reconstructions(run: LoadedRun, path: Path) -> Path:
    """Write the figure of `plot_reconstructions`, and its bare pixels for comparing runs.

    The pixels go to `reconstruction_pixels_file(path)`. A report on several runs reads them and
    draws the data once above the reconstructions of all runs.
    """
    images, _ = _reconstruct(run, _RECONSTRUCTIONS)
    pixels = (tile_images(images) * 255).round().astype(np.uint8)
    save_pixels(pixels, reconstruction_pixels_file(path), step=run.step)
    return save_figure(plot_reconstructions(run), path, step=run.step)


def reconstruction_pixels_file(path: Path) -> Path:
    """Return the file with the bare pixels of a reconstruction figure."""
    return path.with_name(f"{path.stem}-pixels.png")


def plot_compared_reconstructions(files: Mapping[str, Path]) -> Figure | None:
    """Plot one row of data above the reconstructions of several runs.

    Args:
        files: Pixel files written by `save_reconstructions`, by the name of the run.

    Returns:
        The figure, or None if the runs do not all show the same data.
    """
    halves = {name: _split_rows(path) for name, path in files.items()}
    data = next(iter(halves.values()))[0]
    if not all(np.array_equal(data, other) for other, _ in halves.values()):
        return None
    rows = [data, *(reconstruction for _, reconstruction in halves.values())]
    height, width = data.shape[:2]
    row_inches = CELL_INCHES
    figure = Figure(
        figsize=(row_inches * width / height + 2.2, row_inches * len(rows) + 0.2),
        layout="constrained",
    )
    axis = figure.subplots()
    gap = np.full((max(1, round(_GAP * height)), width, 3), 255, np.uint8)
    axis.imshow(np.concatenate([part for row in rows for part in (row, gap)][:-1]))
    places = [place * (height + len(gap)) + height / 2 for place in range(len(rows))]
    axis.set_yticks(places, ["data", *halves], fontsize=8)
    axis.set_xticks([])
    axis.tick_params(length=0, pad=3)
    axis.spines[:].set_visible(False)
    return figure


def _split_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a pixel file and return its data row and its reconstruction row."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    # The file has two rows of the same height with a gap of round(_GAP * height) between them.
    height = next(h for h in range(1, len(pixels)) if 2 * h + round(_GAP * h) >= len(pixels))
    return pixels[:height], pixels[-height:]


@torch.no_grad()
def _reconstruct(run: LoadedRun, columns: int) -> tuple[np.ndarray, str]:
    """Return examples and reconstructions, (2, columns, height, width, channels), and the split."""
    run = on_unseen_examples(run)
    x = run.examples.batch(select_examples(run, columns))
    rebuilt = decode_codes(run, image_model(run).encode(x).mean)
    return to_channels_last(torch.stack([as_pixels(run, x), rebuilt])), run.examples.split


def to_channels_last(images: torch.Tensor) -> np.ndarray:
    """Convert (rows, columns, channels, height, width) to grey or RGB images, channels last.

    With two or four channels the last one is taken as opacity, and the image is laid on white.
    """
    pixels = images.permute(0, 1, 3, 4, 2).float().cpu().numpy()
    if pixels.shape[-1] % 2:
        return pixels
    return 1 - pixels[..., -1:] * (1 - pixels[..., :-1])


def draw_grid(
    axis: Axes,
    images: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str] = (),
    *,
    fontsize: float = 8,
) -> None:
    """Draw a grid of images on an axis.

    Args:
        axis: The axis to draw on.
        images: (rows, columns, height, width, channels) array in [0, 1].
        rows: Labels to the left of the rows.
        columns: Labels below the columns.
        fontsize: Size of the labels, in points.
    """
    height, width = images.shape[2:4]
    down, across = height + round(_GAP * height), width + round(_GAP * width)
    axis.imshow(tile_images(images), vmin=0, vmax=1)
    axis.set_yticks([row * down + height / 2 for row in range(len(rows))], rows, fontsize=fontsize)
    axis.set_xticks(
        [column * across + width / 2 for column in range(len(columns))], columns, fontsize=fontsize
    )
    axis.tick_params(length=0, pad=3)
    axis.spines[:].set_visible(False)


def tile_images(images: np.ndarray) -> np.ndarray:
    """Join images into one RGB image with white gaps between them.

    Args:
        images: (rows, columns, height, width, channels) array in [0, 1].
    """
    rows, columns, height, width, _ = images.shape
    down, across = round(_GAP * height), round(_GAP * width)
    padded = np.pad(images, ((0, 0), (0, 0), (0, down), (0, across), (0, 0)), constant_values=1.0)
    tiled = padded.transpose(0, 2, 1, 3, 4).reshape(
        rows * (height + down), columns * (width + across), -1
    )
    tiled = tiled[: tiled.shape[0] - down, : tiled.shape[1] - across].clip(0, 1)
    return np.broadcast_to(tiled, (*tiled.shape[:2], 3))
