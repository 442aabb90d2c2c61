"""A picture that somebody points at: an example, or a file of one's own."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit, Images
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.images.decoding import Unreadable, decode
from controlvae.lab.data.paths import resolve_path
from controlvae.lab.runs.loaded import LoadedRun, must_have_examples, some_examples


class Chosen(NamedTuple):
    pixels: Tensor  # (channels, height, width) in [0, 1]
    name: str
    short: str  # for the name of a file


def chosen(run: LoadedRun, given: int | str, asked: str, names: Iterable[str] = ()) -> Chosen:
    """The example of that index, or a file made like the examples.

    Where it is neither, the error names the option that was `asked`, and the `names` it would have taken, too.
    """
    number = str(given)
    if number.removeprefix("-").isdecimal():
        must_have_examples(run)
        if not 0 <= int(number) < len(run.examples):
            raise UserError(f"{asked} must lie in 0..{len(run.examples) - 1}, got {given}")
        pixels = run.examples.batch(torch.tensor([int(number)], device=run.device))[0]
        return Chosen(pixels, f"picture {int(number):,}", number)
    file = _file(run, number)
    if not file.is_file():
        ways = ["the index of an example", "a picture file", *names]
        raise UserError(
            f"{asked} takes {', '.join(ways[:-1])} or {ways[-1]}, got {given}: no file {file}"
        )
    return Chosen(_read(run, file), file.name, file.stem)


def _file(run: LoadedRun, given: str) -> Path:
    """The file of that path from here; else of that name in the folder of the run's own pictures, where it has one."""
    file, data = Path(given).expanduser(), run.experiment.data
    if file.is_file() or not isinstance(data, Images):
        return file
    with contextlib.suppress(UserError):
        return resolve_path(data.path, run.root)[0] / given
    return file


def _read(run: LoadedRun, file: Path) -> Tensor:
    """Cropped, resized and coloured as the examples are."""
    channels, height, width = run.examples.shape
    fit: Fit = getattr(
        run.experiment.data, "fit", "crop"
    )  # data sets without the setting have square pictures
    try:
        pixels = torch.from_numpy(
            decode(file.read_bytes(), channels, width if width == height else None, fit).copy()
        )
    except (OSError, Unreadable) as error:
        raise UserError(f"{file} cannot be read as a picture: {error}") from None
    if pixels.shape[:2] != (height, width):
        own = f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise UserError(
            f"{file} is {own}; the model is of pictures of {width}x{height}, which are not resized"
        )
    shades = pixels.permute(2, 0, 1).to(run.device).float() / 255
    return shades.round() if isinstance(run.examples, BinaryImages) else shades


def endpoints(run: LoadedRun, start: int | None, end: int | None) -> tuple[int, int]:
    """The examples to go between: by index, or else a fixed random choice."""
    count, given = len(run.examples), {"--from": start, "--to": end}
    for name, index in given.items():
        if index is not None and not 0 <= index < count:
            raise UserError(f"{name} must lie in 0..{count - 1}, got {index}")
    others = iter(some_examples(run, 2, stream=5).tolist())
    first, last = (next(others, 0) if index is None else index for index in given.values())
    return first, last
