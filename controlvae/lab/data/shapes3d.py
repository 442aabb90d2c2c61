"""3D Shapes: 480,000 colour images of an object in a room with six factors.

Burgess & Kim, *3D Shapes Dataset*, 2018. The images are rendered from their factors. The original
file is read instead if it is present.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import Shapes3D
from controlvae.lab.data.cache import cached_array, fingerprint_files
from controlvae.lab.data.composed_images import ComposedImages, LayerTable
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.paths import find_file
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.room_renderer import (
    FACTOR_NAMES,
    FACTOR_SIZES,
    FIXED_POINT,
    GEOMETRIES,
    IMAGE_COUNT,
    LAYERS,
    SIDE,
    UNORDERED,
    VERSION,
    Scene,
    hue_channels,
    render_layers,
)
from controlvae.lab.data.splits import subset_indices

ORIGINAL_FILE = "3dshapes.h5"
ORIGINAL_PATHS = [ORIGINAL_FILE, f"3dshapes/{ORIGINAL_FILE}"]
_CHUNK_IMAGES = 4_096
_HELD_OUT = "no held-out images"


def load_shapes3d(settings: Shapes3D, root: Path | None = None) -> ComposedImages | ByteImages:
    """Load the images: rendered ones composed on demand, or the original ones from the disk."""
    indices = subset_indices(IMAGE_COUNT, settings.images)
    classes = factor_classes(indices)
    shape, about = (3, settings.size, settings.size), (classes, FACTOR_NAMES, UNORDERED)
    original = find_file(ORIGINAL_PATHS, root)
    if original is not None:
        rows = torch.from_numpy(_read_original(original, indices, settings))
        source = f"the original file {original.name}"
        return ByteImages(rows, shape, source, _HELD_OUT, *about)
    table = LayerTable(
        torch.from_numpy(_load_layers(settings.size)),
        FIXED_POINT,
        torch.from_numpy(hue_channels().astype(np.uint8)),
    )
    return ComposedImages(
        torch.from_numpy(classes.astype(np.uint8)),
        shape,
        "rendered from the factors",
        _HELD_OUT,
        *about,
        table=table,
        version=f"renderer {VERSION}",
    )


def factor_classes(indices: np.ndarray) -> np.ndarray:
    """Return the factors of images as class numbers: int64, (n, 6), in the original's order."""
    return np.stack(np.unravel_index(indices, FACTOR_SIZES), axis=1).astype(np.int64)


def describe_shapes3d(root: Path | None = None) -> str:
    """Return the path of the original file, or "no file"."""
    return str(find_file(ORIGINAL_PATHS, root) or "no file")


def _load_layers(side: int) -> np.ndarray:
    """Render the layers, or read them from the cache."""
    shape = (GEOMETRIES, LAYERS, side * side)
    layers = cached_array(
        "shapes3d",
        ("layers", side),
        f"renderer {VERSION} {Scene()}",
        shape,
        np.int16,
        lambda: iter([render_layers(side)]),
        min_bytes=0,
    )
    return np.array(layers)  # in memory, because every batch reads it all over


def _read_original(path: Path, indices: np.ndarray, settings: Shapes3D) -> np.ndarray:
    """Return the chosen images of the file, (n, bytes), memory-mapped from the cache if large."""
    shape = (len(indices), 3 * settings.size**2)
    return cached_array(
        "3dshapes",
        settings,
        fingerprint_files([path]),
        shape,
        np.uint8,
        lambda: _chunks(path, indices, settings.size),
    )


def _chunks(path: Path, indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the images in pieces. HDF5 reads a contiguous range much faster than single images."""
    h5py = _import_h5py(path)
    try:
        with h5py.File(path, "r") as file:
            images = _check(file["images"])
            for start in range(0, IMAGE_COUNT, _CHUNK_IMAGES):
                first, last = np.searchsorted(indices, (start, start + _CHUNK_IMAGES))
                if first == last:
                    continue
                chosen = indices[first:last] - start
                pixels = images[start : start + _CHUNK_IMAGES][chosen]
                yield _halve(pixels) if size == SIDE // 2 else pixels.reshape(len(pixels), -1)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        reason = str(error).strip("'\"")
        raise UserError(f"{path} cannot be read as 3D Shapes: {reason}") from None


def _import_h5py(path: Path) -> Any:
    try:
        return import_module("h5py")
    except ImportError:
        raise UserError(
            f"{path} needs the h5py package: pip install 'controlvae[shapes3d]', or move the file "
            "away to have the images rendered"
        ) from None


def _check(images: Any) -> Any:
    if images.shape != (IMAGE_COUNT, SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"expected images uint8 ({IMAGE_COUNT}, 64, 64, 3), got {images.dtype} {images.shape}"
        )
    return images


def _halve(pixels: np.ndarray) -> np.ndarray:
    """Average squares of four pixels: (n, 64, 64, 3) to (n, 32 * 32 * 3)."""
    squares = pixels.reshape(len(pixels), SIDE // 2, 2, SIDE // 2, 2, 3).astype(np.uint16)
    halves = (squares.sum(axis=(2, 4)) + 2) // 4
    return halves.astype(np.uint8).reshape(len(pixels), -1)


SPECS = [
    DatasetSpec(
        "shapes3d",
        Shapes3D,
        load_shapes3d,
        about="3D Shapes: 480,000 colour 64x64 images of an object in a room; factors floor hue 10, "
        "wall hue 10, object hue 10, scale 8, shape 4, orientation 15",
        needs=f"no files: rendered from the factors. Used instead if present: {ORIGINAL_FILE} "
        "(255 MB, github.com/google-deepmind/3d-shapes; needs h5py), here or in 3dshapes/",
        describe_files=describe_shapes3d,
    )
]
