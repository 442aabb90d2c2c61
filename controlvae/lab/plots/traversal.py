"""Latent traversals: from the code of one picture each latent is moved alone, and the decoder shows what it does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data.sprite_renderer import IMAGE_COUNT
from controlvae.lab.evaluation.image_input import chosen
from controlvae.lab.plots.image_grid import CELL, channels_last, draw_grid
from controlvae.lab.plots.mutual_information import SHOWN, latent_factors, latent_name, scored_kl
from controlvae.lab.runs.loaded import (
    LoadedRun,
    decoded,
    format_count,
    latent_kl,
    picture_model,
    some_examples,
)
from controlvae.metrics._validation import at_least

_OVER = 1_000  # examples that latents are ranked by

# Indices of the images from which the released code starts its traversals among all 737,280.
SEED_IMAGES = {"square": 87_040, "ellipse": 332_800, "heart": 578_560}


@dataclass(frozen=True)
class Ranked:
    """The latents of largest KL, in its order."""

    latents: list[int]
    kl: list[float]  # of each, nats
    factors: list[
        str | None
    ]  # of every latent, the one it tells most about; empty where that is not known
    among: int  # how many latents there are
    over: str  # the examples of that KL

    def names(self) -> list[str]:
        """`x, z₉` for each."""
        return [latent_name(latent, self.factors) for latent in self.latents]


@dataclass(frozen=True)
class Traversal(Ranked):
    """One row per latent, one column per value it was moved to."""

    pictures: np.ndarray  # (rows, columns, height, width, channels) in [0, 1]
    values: np.ndarray  # (columns,)
    start: str  # the picture whose code is moved


def ranked(run: LoadedRun, rows: int = SHOWN) -> Ranked:
    """By the KL over the examples that were scored, as in the heat map; where none were, over some examples."""
    # Latents can change places while training goes on: an earlier step's metrics are not used.
    metrics = run.folder.metrics() if run.folder.evaluated_step() == run.step else None
    if metrics is not None and (scored := scored_kl(metrics)) is not None:
        truth = metrics["ground_truth"]
        kl, over = torch.tensor(scored), format_count(truth["examples"], truth["split"])
    else:
        kl = latent_kl(run, some_examples(run, _OVER))
        over = format_count(min(_OVER, run.available), run.examples.split)
    order = torch.argsort(kl, descending=True)[:rows].tolist()
    return Ranked(order, kl[order].tolist(), latent_factors(metrics), len(kl), over)


@torch.no_grad()
def traverse(
    run: LoadedRun, image: str | int | None, values: Sequence[float] | np.ndarray, rows: int = SHOWN
) -> Traversal:
    """Each latent takes every value in turn; the others stay at the picture's own code."""
    at_least(1, rows=rows, columns=len(values))
    shown = ranked(run, rows)
    start = chosen(run, seed_image(run, image), "--image", SEED_IMAGES if is_full(run) else ())
    code = picture_model(run).encode(start.pixels.unsqueeze(0)).mean[0]
    codes = code.repeat(len(shown.latents), len(values), 1)  # (rows, columns, latents)
    for row, latent in enumerate(shown.latents):
        codes[row, :, latent] = torch.as_tensor(np.asarray(values, dtype=np.float32)).to(code)
    pictures = decoded(run, codes.flatten(0, 1)).unflatten(0, (len(shown.latents), len(values)))
    return Traversal(
        **vars(shown), pictures=channels_last(pictures), values=np.asarray(values), start=start.name
    )


def is_full(run: LoadedRun) -> bool:
    """Whether the paper's seed images can be found by their numbers."""
    return isinstance(run.experiment.data, Shapes2D) and len(run.examples) == IMAGE_COUNT


def seed_images(run: LoadedRun) -> list[str | None]:
    """Where to start when nobody says: a random picture and, as the released code does, the paper's three."""
    return [None, *(SEED_IMAGES if is_full(run) else ())]


def seed_image(run: LoadedRun, image: str | int | None) -> int | str:
    """The picture to start from: as it is given, one of the paper's by name, or else a fixed random choice."""
    if image is None:
        return int(some_examples(run, 1, stream=3))
    if image in SEED_IMAGES and is_full(run):
        return SEED_IMAGES[str(image)]
    if image in SEED_IMAGES:
        has = f"{run.folder.path} has {len(run.examples):,} pictures"
        raise UserError(f"the paper's {image} is one of all {IMAGE_COUNT:,} shapes; {has}")
    return image


def traversals(
    run: LoadedRun,
    *,
    image: str | int | None = None,
    reach: float = 3.0,
    columns: int = 10,
    rows: int = SHOWN,
) -> Figure:
    """The grid as a figure: rows named by latent and KL, columns by the value of the latent."""
    shown = traverse(run, image, np.linspace(-reach, reach, columns), rows)
    figure = Figure(
        figsize=(CELL * columns + 1.7, CELL * len(shown.latents) + 0.5), layout="constrained"
    )
    axis = figure.subplots()
    draw_traversal(axis, shown)
    count = len(shown.latents)
    which = (
        f"; the {count} latents of largest KL out of {shown.among}" if count < shown.among else ""
    )
    which = f"; that of largest KL out of {shown.among}" if count == 1 < shown.among else which
    picture = f"{shown.start}, the paper's {image}" if image in SEED_IMAGES else shown.start
    axis.set_xlabel(
        f"value of the latent{which}\nfrom the code of {picture}; KL over {shown.over}", fontsize=8
    )
    return figure


def draw_traversal(
    axis: Axes, shown: Traversal, *, fontsize: float = 8, stacked: bool = False, every: int = 1
) -> None:
    """The grid on an axis. `stacked` sets a KL below a long name; every so many columns have their value below."""
    between = ["\n" if stacked and "," in name else "  " for name in shown.names()]
    rows = [
        f"{name}{gap}{kl:.2f} nats"
        for name, gap, kl in zip(shown.names(), between, shown.kl, strict=True)
    ]
    gaps = np.abs(np.diff(shown.values))
    digits = 1 if (gaps >= 0.1).all() else 2 if (gaps >= 0.01).all() else 3
    columns = [
        signed(value, digits) if place % every == 0 else ""
        for place, value in enumerate(shown.values)
    ]
    draw_grid(axis, shown.pictures, rows, columns, fontsize=fontsize)


def signed(value: float, digits: int = 1) -> str:
    """`−2.3`, `+0.3`, and `0.0` without a sign."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text
