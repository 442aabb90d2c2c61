"""Pictures of what a model knows: reconstructions and latent traversals."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from controlvae.errors import UserError
from controlvae.report.trained import Trained, latent_kl, some_examples


def save_figure(figure: Figure, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, bbox_inches="tight", facecolor="white")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


@torch.no_grad()
def reconstructions(run: Trained, columns: int = 12) -> Figure:
    """Examples above, their reconstructions (from the posterior mean) below."""
    x = run.examples.batch(some_examples(run, columns))
    rebuilt = torch.sigmoid(run.model.decode(run.model.encode(x).mean))
    return _grid(torch.stack([x, rebuilt]), ["data", "reconstruction"])


@torch.no_grad()
def traversals(run: Trained, *, image: int | None = None, reach: float = 3.0, columns: int = 10) -> Figure:
    """One row per latent, ordered by KL: that latent runs over [-reach, reach], the others stay at the image's code."""
    index = _seed_image(run, image)
    kl = latent_kl(run, some_examples(run, 1000))
    order = torch.argsort(kl, descending=True)
    values = torch.linspace(-reach, reach, columns, device=run.device)
    code = run.model.encode(run.examples.batch(index)).mean[0]
    codes = code.repeat(len(order), columns, 1)  # (latents, columns, latents)
    for row, latent in enumerate(order):
        codes[row, :, latent] = values
    pictures = torch.sigmoid(run.model.decode(codes.flatten(0, 1))).unflatten(0, (len(order), columns))
    names = [f"$z_{{{latent + 1}}}$   {kl[latent]:.2f} nats" for latent in order.tolist()]
    figure = _grid(pictures, names)
    for axis, value in zip(figure.axes[-columns:], values.tolist(), strict=True):
        axis.set_xlabel(f"{value:+.1f}", fontsize=7)
    return figure


def _seed_image(run: Trained, image: int | None) -> Tensor:
    if image is None:
        return some_examples(run, 1, stream=3)
    if not 0 <= image < len(run.examples):
        raise UserError(f"--image must lie in 0..{len(run.examples) - 1}, got {image}")
    return torch.tensor([image], device=run.device)


def _grid(pictures: Tensor, names: list[str]) -> Figure:
    """Rows of pictures with a name each. pictures: (rows, columns, channels, height, width) in [0, 1]."""
    rows, columns = pictures.shape[:2]
    figure = Figure(figsize=(0.72 * columns + 1.2, 0.72 * rows + 0.2))
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    array = pictures.cpu().numpy().transpose(0, 1, 3, 4, 2)
    for (row, column), axis in np.ndenumerate(axes):
        picture = array[row, column]
        axis.imshow(picture[..., 0] if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        if column == 0:
            axis.set_ylabel(names[row], rotation=0, ha="right", va="center", fontsize=8)
    return figure
