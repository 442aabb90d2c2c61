"""Latent traversals: move one latent of an image's code at a time and decode the result."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data.sprite_renderer import IMAGE_COUNT
from controlvae.lab.evaluation.image_input import resolve_image
from controlvae.lab.plots.image_grid import CELL_INCHES, draw_grid, to_channels_last
from controlvae.lab.plots.mutual_information import (
    MAX_LATENTS_SHOWN,
    dominant_factors,
    format_latent,
    scored_latent_kl,
)
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decode_codes,
    format_count,
    image_model,
    latent_kl,
    select_examples,
)
from controlvae.metrics._validation import check_at_least

_RANKING_EXAMPLES = 1_000  # over which the KL of the latents is averaged

# Indices, among all 737,280 shapes, of the images from which the released code starts.
SEED_IMAGES = {"square": 87_040, "ellipse": 332_800, "heart": 578_560}


@dataclass(frozen=True)
class RankedLatents:
    """The latents of largest KL, in descending order."""

    latents: list[int]
    kl: list[float]  # of each latent above, in nats
    factors: list[str | None]  # dominant factor of every latent of the model; empty if unknown
    among: int  # number of latents of the model
    over: str  # description of the examples the KL is averaged over

    def names(self) -> list[str]:
        """Format each latent, e.g. `x, z₉`."""
        return [format_latent(latent, self.factors) for latent in self.latents]


@dataclass(frozen=True)
class Traversal(RankedLatents):
    """Decoded images, one row per latent and one column per value."""

    images: np.ndarray  # (rows, columns, height, width, channels) in [0, 1]
    values: np.ndarray  # (columns,)
    start: str  # name of the image whose code is moved


def rank_latents(run: LoadedRun, rows: int = MAX_LATENTS_SHOWN) -> RankedLatents:
    """Rank the latents of a run by KL, and keep the first `rows`.

    The KL is that over the scored examples, as in the heat map of the mutual information, or over
    1,000 examples if none were scored.
    """
    # Latents can swap roles during training, so metrics of an earlier step are not used.
    metrics = run.folder.metrics() if run.folder.evaluated_step() == run.step else None
    if metrics is not None and (scored := scored_latent_kl(metrics)) is not None:
        truth = metrics["ground_truth"]
        kl, over = torch.tensor(scored), format_count(truth["examples"], truth["split"])
    else:
        kl = latent_kl(run, select_examples(run, _RANKING_EXAMPLES))
        over = format_count(min(_RANKING_EXAMPLES, run.available), run.examples.split)
    order = torch.argsort(kl, descending=True)[:rows].tolist()
    return RankedLatents(order, kl[order].tolist(), dominant_factors(metrics), len(kl), over)


@torch.no_grad()
def traverse_latents(
    run: LoadedRun,
    image: str | int | None,
    values: Sequence[float] | np.ndarray,
    rows: int = MAX_LATENTS_SHOWN,
) -> Traversal:
    """Decode the code of an image with each latent set to each value.

    Args:
        run: The run.
        image: Index of an example, a file, "square", "ellipse" or "heart" for the paper's images,
            or None for a fixed random example.
        values: Values that each latent takes.
        rows: Number of latents, those of largest KL first.
    """
    check_at_least(1, rows=rows, columns=len(values))
    ranking = rank_latents(run, rows)
    names = SEED_IMAGES if has_all_shapes(run) else ()
    start = resolve_image(run, resolve_start_image(run, image), "--image", names)
    code = image_model(run).encode(start.pixels.unsqueeze(0)).mean[0]
    codes = code.repeat(len(ranking.latents), len(values), 1)  # (rows, columns, latents)
    for row, latent in enumerate(ranking.latents):
        codes[row, :, latent] = torch.as_tensor(np.asarray(values, dtype=np.float32)).to(code)
    images = decode_codes(run, codes.flatten(0, 1)).unflatten(
        0, (len(ranking.latents), len(values))
    )
    return Traversal(
        **vars(ranking),
        images=to_channels_last(images),
        values=np.asarray(values),
        start=start.name,
    )


def has_all_shapes(run: LoadedRun) -> bool:
    """Return True if the run has all 2D Shapes, so that the paper's images have their indices."""
    return isinstance(run.experiment.data, Shapes2D) and len(run.examples) == IMAGE_COUNT


def start_images(run: LoadedRun) -> list[str | None]:
    """Return the default start images: a random one and, as in the released code, the paper's."""
    return [None, *(SEED_IMAGES if has_all_shapes(run) else ())]


def resolve_start_image(run: LoadedRun, image: str | int | None) -> int | str:
    """Resolve a start image to the index of an example or a file name.

    Args:
        run: The run.
        image: As in `traverse_latents`.

    Raises:
        UserError: One of the paper's images was requested from a run without all shapes.
    """
    if image is None:
        return int(select_examples(run, 1, stream=3))
    if image in SEED_IMAGES and has_all_shapes(run):
        return SEED_IMAGES[str(image)]
    if image in SEED_IMAGES:
        raise UserError(
            f"the paper's {image} needs all {IMAGE_COUNT:,} shapes, but {run.folder.path} has "
            f"{len(run.examples):,} images; pass the index of an example"
        )
    return image


def plot_traversal(
    run: LoadedRun,
    *,
    image: str | int | None = None,
    reach: float = 3.0,
    columns: int = 10,
    rows: int = MAX_LATENTS_SHOWN,
) -> Figure:
    """Plot a traversal with rows labelled by latent and KL, and columns by the latent's value.

    Args:
        run: The run.
        image: Start image, as in `traverse_latents`.
        reach: Values run from -reach to reach.
        columns: Number of values.
        rows: Number of latents, those of largest KL first.
    """
    traversal = traverse_latents(run, image, np.linspace(-reach, reach, columns), rows)
    count = len(traversal.latents)
    size = (CELL_INCHES * columns + 1.7, CELL_INCHES * count + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    draw_traversal(axis, traversal)
    selection = ""
    if count < traversal.among:
        which = "that" if count == 1 else f"the {count} latents"
        selection = f"; {which} of largest KL out of {traversal.among}"
    start = traversal.start + (f", the paper's {image}" if image in SEED_IMAGES else "")
    axis.set_xlabel(
        f"value of the latent{selection}\nfrom the code of {start}; KL over {traversal.over}",
        fontsize=8,
    )
    return figure


def draw_traversal(
    axis: Axes,
    traversal: Traversal,
    *,
    fontsize: float = 8,
    stacked: bool = False,
    every: int = 1,
) -> None:
    """Draw a traversal on an axis.

    Args:
        axis: The axis to draw on.
        traversal: The decoded images.
        fontsize: Size of the labels, in points.
        stacked: Put the KL below the name of a latent if that contains a factor.
        every: Label every n-th column.
    """
    names = traversal.names()
    separators = ["\n" if stacked and "," in name else "  " for name in names]
    rows = [
        f"{name}{separator}{kl:.2f} nats"
        for name, separator, kl in zip(names, separators, traversal.kl, strict=True)
    ]
    gaps = np.abs(np.diff(traversal.values))
    digits = 1 if (gaps >= 0.1).all() else 2 if (gaps >= 0.01).all() else 3
    columns = [
        format_signed(value, digits) if place % every == 0 else ""
        for place, value in enumerate(traversal.values)
    ]
    draw_grid(axis, traversal.images, rows, columns, fontsize=fontsize)


def format_signed(value: float, digits: int = 1) -> str:
    """Format a number with its sign: `−2.3`, `+0.3`, and `0.0` without one."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text
