"""Input images named on the command line: an example by its index, or an image file."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit, Images
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.images.decoding import UnreadableImage, decode_image
from controlvae.lab.data.paths import resolve_path
from controlvae.lab.reading import MAX_IMAGE_BYTES, read_bytes
from controlvae.lab.runs.loaded import LoadedRun, require_examples, select_examples


class ImageInput(NamedTuple):
    """An image to encode, and how to name it."""

    pixels: Tensor  # (channels, height, width) in [0, 1]
    name: str
    short: str  # used in file names


def resolve_image(
    run: LoadedRun, image: int | str, option: str, names: Iterable[str] = ()
) -> ImageInput:
    """Load an example by its index, or an image file prepared like the examples.

    Args:
        run: Trained run over images.
        image: Index of an example, or path of an image file.
        option: Command-line option to name in error messages.
        names: Further values that the option accepts, for error messages.
    """
    text = str(image)
    if text.removeprefix("-").isdecimal():
        require_examples(run)
        index = int(text)
        if not 0 <= index < len(run.examples):
            raise UserError(f"{option} must be in 0..{len(run.examples) - 1}, got {image}")
        pixels = run.examples.batch(torch.tensor([index], device=run.device))[0]
        return ImageInput(pixels, f"image {index:,}", text)
    file = _find_image_file(run, text)
    if not file.is_file():
        accepted = ["the index of an example", "an image file", *names]
        choices = f"{', '.join(accepted[:-1])} or {accepted[-1]}"
        raise UserError(f"{option} takes {choices}, got {image}: no file {file}")
    return ImageInput(_read_image(run, file), file.name, file.stem)


def _find_image_file(run: LoadedRun, text: str) -> Path:
    """Resolve a path against the working directory, then against the run's image folder."""
    file, data = Path(text).expanduser(), run.experiment.data
    if file.is_file() or not isinstance(data, Images):
        return file
    with contextlib.suppress(UserError):
        return resolve_path(data.path, run.root)[0] / text
    return file


def _read_image(run: LoadedRun, file: Path) -> Tensor:
    """Read a file, cropped, resized and converted like the examples."""
    channels, height, width = run.examples.shape
    # Data sets without the setting have square images.
    fit: Fit = getattr(run.experiment.data, "fit", "crop")
    side = width if width == height else None
    try:
        pixels = torch.from_numpy(
            decode_image(read_bytes(file, MAX_IMAGE_BYTES), channels, side, fit).copy()
        )
    except (OSError, ValueError, UnreadableImage) as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from None
    if pixels.shape[:2] != (height, width):
        raise UserError(
            f"{file} must be {width}x{height}, the size the model was trained on, got "
            f"{pixels.shape[1]}x{pixels.shape[0]}; resize it first"
        )
    scaled = pixels.permute(2, 0, 1).to(run.device).float() / 255
    return scaled.round() if isinstance(run.examples, BinaryImages) else scaled


def interpolation_endpoints(run: LoadedRun, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the indices of two examples, a fixed random choice for those that are None.

    Args:
        run: Trained run.
        start: Index of the first example, or None.
        end: Index of the last example, or None.
    """
    count, indices = len(run.examples), {"--from": start, "--to": end}
    for option, index in indices.items():
        if index is not None and not 0 <= index < count:
            raise UserError(f"{option} must be in 0..{count - 1}, got {index}")
    random_indices = iter(select_examples(run, 2, stream=5).tolist())
    first, last = (
        next(random_indices, 0) if index is None else index for index in indices.values()
    )
    return first, last
