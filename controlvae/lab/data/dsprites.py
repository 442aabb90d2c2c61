"""2D Shapes (dSprites): 737,280 binary images of a square, ellipse or heart with five factors.

Matthey et al., *dSprites*, 2017. The images are rendered from their factors. The original file is
used instead if it is present.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.paths import find_file
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.sprite_renderer import (
    FACTOR_NAMES,
    IMAGE_COUNT,
    UNORDERED,
    factor_classes,
    render,
    render_packed,
)
from controlvae.lab.reading import READ_ERRORS, open_zip

ORIGINAL_FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
ORIGINAL_PATHS = [ORIGINAL_FILE, f"dsprites/{ORIGINAL_FILE}"]
_CHUNK_IMAGES = 16_384


def load_shapes2d(settings: Shapes2D, root: Path | None = None) -> BinaryImages:
    """Load or render the images, with one bit per pixel."""
    indices = _choose(settings.images)
    original = find_file(ORIGINAL_PATHS, root)
    source = "rendered from the factors"
    if original is not None:
        packed, source = _read_original(original), f"the original file {original.name}"
        packed = packed if indices is None else packed[indices]
    elif indices is None:
        packed = render_packed()
    else:
        packed = np.packbits(render(indices).reshape(len(indices), -1), axis=1)
    if settings.size == 32:
        packed = _halve(packed)
    return BinaryImages(
        torch.from_numpy(packed),
        (1, settings.size, settings.size),
        source,
        "no held-out images",
        factor_classes(indices),
        FACTOR_NAMES,
        UNORDERED,
    )


def describe_shapes2d(root: Path | None = None) -> str:
    """Return the path of the original file, or "no file"."""
    return str(find_file(ORIGINAL_PATHS, root) or "no file")


def _choose(count: int | None) -> np.ndarray | None:
    # A fixed choice: the same for every seed of a run, so that seeds share their data.
    if count is None or count == IMAGE_COUNT:
        return None
    rng = np.random.default_rng(stream_key(0, count))
    return np.sort(rng.choice(IMAGE_COUNT, count, replace=False))


def _halve(packed: np.ndarray) -> np.ndarray:
    """Take every second pixel of every second row: (count, 512) -> (count, 128).

    A point-sampled shape stays binary.
    """
    halves = []
    for start in range(0, len(packed), _CHUNK_IMAGES):
        bits = np.unpackbits(packed[start : start + _CHUNK_IMAGES], axis=1)
        pixels = bits.reshape(-1, 64, 64)[:, ::2, ::2]
        halves.append(np.packbits(pixels.reshape(len(pixels), -1), axis=1))
    return np.concatenate(halves)


def _read_original(path: Path) -> np.ndarray:
    """Read the original images as bits, (737280, 512), in chunks: unpacked they take 3 GB."""
    packed = np.empty((IMAGE_COUNT, 512), dtype=np.uint8)
    try:
        with open_zip(path) as archive, archive.open("imgs.npy") as file:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            if shape != (IMAGE_COUNT, 64, 64) or dtype != np.uint8:
                raise ValueError(
                    f"expected images uint8 ({IMAGE_COUNT}, 64, 64), got {dtype} {shape}"
                )
            for start in range(0, IMAGE_COUNT, _CHUNK_IMAGES):
                part = packed[start : start + _CHUNK_IMAGES]
                pixels = np.frombuffer(file.read(len(part) * 4096), dtype=np.uint8)
                part[:] = np.packbits(pixels.reshape(-1, 4096), axis=1)
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read as dSprites: {error}") from None
    return packed


SPECS = [
    DatasetSpec(
        "shapes2d",
        Shapes2D,
        load_shapes2d,
        about="2D Shapes (dSprites): 737,280 binary 64x64 images; factors shape 3, scale 6, "
        "orientation 40, x 32, y 32",
        needs=f"no files: rendered from the factors. Used instead if present: {ORIGINAL_FILE} "
        "(26 MB, github.com/google-deepmind/dsprites-dataset)",
        describe_files=describe_shapes2d,
    )
]
