"""2D Shapes (dSprites): 737,280 binary pictures of a square, an ellipse or a heart, from five independent factors.

Matthey et al., *dSprites*, 2017. Rendered here from the factors; the original file is used where it is at hand.
"""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data.dataset import BinaryImages, stream_key
from controlvae.lab.data.paths import find_file
from controlvae.lab.data.source import Source
from controlvae.lab.data.sprite_renderer import (
    FACTOR_NAMES,
    IMAGE_COUNT,
    UNORDERED,
    factor_classes,
    render,
    render_packed,
)

ORIGINAL = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
ORIGINAL_PLACES = [ORIGINAL, f"dsprites/{ORIGINAL}"]
_CHUNK = 16_384


def load(settings: Shapes2D, root: Path | None = None) -> BinaryImages:
    """The pictures a run asks for, as bits."""
    indices = _subset(settings.images)
    original = find_file(ORIGINAL_PLACES, root)
    if original is not None:
        packed, source = _read_original(original), f"the original file {original.name}"
        packed = packed if indices is None else packed[indices]
    elif indices is None:
        packed, source = render_packed(), "rendered from the factors"
    else:
        packed, source = (
            np.packbits(render(indices).reshape(len(indices), -1), axis=1),
            "rendered from the factors",
        )
    if settings.size == 32:
        packed = _halve(packed)
    shape = (1, settings.size, settings.size)
    return BinaryImages(
        torch.from_numpy(packed),
        shape,
        source,
        "no held-out images",
        factor_classes(indices),
        FACTOR_NAMES,
        UNORDERED,
    )


def found(root: Path | None = None) -> str:
    """What of the original is there, for people."""
    return str(find_file(ORIGINAL_PLACES, root) or "no file")


def _subset(count: int | None) -> np.ndarray | None:
    """A fixed choice of pictures: the same for every seed of a run, so that seeds differ in training alone."""
    if count is None or count == IMAGE_COUNT:
        return None
    return np.sort(
        np.random.default_rng(stream_key(0, count)).choice(IMAGE_COUNT, count, replace=False)
    )


def _halve(packed: np.ndarray) -> np.ndarray:
    """Every second pixel of every second row: a point-sampled shape stays binary. (count, 512) -> (count, 128)."""
    halves = []
    for start in range(0, len(packed), _CHUNK):
        pixels = np.unpackbits(packed[start : start + _CHUNK], axis=1).reshape(-1, 64, 64)[
            :, ::2, ::2
        ]
        halves.append(np.packbits(pixels.reshape(len(pixels), -1), axis=1))
    return np.concatenate(halves)


def _read_original(path: Path) -> np.ndarray:
    """The original pictures as bits, (737280, 512), streamed: unpacked at once they would take 3 GB."""
    packed = np.empty((IMAGE_COUNT, 512), dtype=np.uint8)
    try:
        with zipfile.ZipFile(path) as archive, archive.open("imgs.npy") as file:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            if shape != (IMAGE_COUNT, 64, 64) or dtype != np.uint8:
                raise ValueError(
                    f"its images are {dtype} of shape {shape}, expected uint8 ({IMAGE_COUNT}, 64, 64)"
                )
            for start in range(0, IMAGE_COUNT, _CHUNK):
                piece = packed[start : start + _CHUNK]
                pixels = np.frombuffer(file.read(len(piece) * 4096), dtype=np.uint8)
                piece[:] = np.packbits(pixels.reshape(-1, 4096), axis=1)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be read as dSprites: {error}") from None
    return packed


SOURCE = Source(
    "shapes2d",
    Shapes2D,
    load,
    found=found,
    about="2D Shapes (dSprites): 737,280 binary 64x64 pictures; factors shape 3, scale 6, orientation 40, x 32, y 32",
    needs=f"no files: rendered from the factors. Used instead where present: {ORIGINAL} (26 MB, "
    "github.com/google-deepmind/dsprites-dataset)",
)
