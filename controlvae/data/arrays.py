"""Pictures in NumPy files: which array it is, how its axes lie, what its values mean."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

from controlvae.data.decode import Encoded
from controlvae.errors import UserError, unknown

_CHUNK_BYTES = 16 << 20
_ENCODED = ("jpg", "jpeg", "png", "webp")  # members that hold files end to end, with `offsets` beside them
FAULTS = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)  # of a damaged file


class Values(NamedTuple):
    """What the numbers of an array mean."""

    white: int  # 1 or 255
    binary: bool  # nothing but black and white


def read(path: Path, key: str | None) -> np.ndarray | Encoded:
    """The pictures of a `.npy` (memory-mapped) or `.npz` file: (count, height, width, channels), or encoded ones."""
    try:
        if path.suffix == ".npy":
            return channels_last(np.load(path, mmap_mode="c"), path)
        with np.load(path) as file:
            if key is not None and key not in file.files:
                raise unknown(f"array in {path}", key, file.files)
            if key is None and "offsets" in file.files:
                for name in set(_ENCODED).intersection(file.files):
                    return end_to_end(file[name], file["offsets"], path)
            return channels_last(file[key or _only_pictures(path)], path)
    except FAULTS as error:
        raise UserError(f"{path} cannot be read as pictures: {error}") from None


def end_to_end(data: np.ndarray, offsets: np.ndarray, path: Path) -> Encoded:
    """Files stored one after another: number i lies at `offsets[i]` up to `offsets[i + 1]`."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("its offsets do not cut up its data")
    names = [str(index) for index in range(len(offsets) - 1)]
    return Encoded(path, names, lambda index: data[offsets[index] : offsets[index + 1]].tobytes())


def channels_last(array: np.ndarray, path: Path) -> np.ndarray:
    """A view as (count, height, width, channels). At most four channels; where both ends could be, they come last."""
    if array.ndim == 3 and array.size:
        return array[..., None]
    if array.ndim == 4 and array.size and array.shape[3] <= 4:
        return array
    if array.ndim == 4 and array.size and array.shape[1] <= 4:
        return np.moveaxis(array, 1, 3)
    raise UserError(f"{path} has shape {array.shape}; pictures are (N, H, W), (N, H, W, C) or (N, C, H, W), C up to 4")


def values_of(array: np.ndarray, path: Path) -> Values:
    """Looks until it has seen a grey value: in photographs at once, in black and white pictures to the end."""
    if array.dtype == bool:
        return Values(1, True)
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise UserError(f"{path} holds {array.dtype}; pictures are uint8, bool, or floats in [0, 1]")
    possible = {1} if array.dtype.kind == "f" else {1, 255}
    for chunk in _chunks(array, np.arange(len(array))):
        possible = {white for white in possible if ((chunk == 0) | (chunk == white)).all()}
        if not possible:
            return Values(1 if array.dtype.kind == "f" else 255, False)
    return Values(min(possible), True)


def to_bytes(chunk: np.ndarray, white: int, path: Path) -> np.ndarray:
    """Values as uint8 from 0 to 255; floats are rounded to these."""
    if chunk.dtype.kind == "f":
        low, high = float(chunk.min()), float(chunk.max())
        if not (low >= -1e-6 and high <= 1 + 1e-6):  # not the other way round: NaN fails every comparison
            raise UserError(f"{path} holds values from {low:g} to {high:g}; floats must lie in [0, 1], so scale them")
        return np.rint(chunk.clip(0, 1).astype(np.float32) * 255).astype(np.uint8)
    return chunk.astype(np.uint8) * np.uint8(255) if white == 1 else chunk


def byte_chunks(array: np.ndarray, indices: np.ndarray, white: int, path: Path) -> Iterator[np.ndarray]:
    """The pictures at these indices as bytes, a chunk at a time."""
    return (to_bytes(chunk, white, path) for chunk in _chunks(array, indices))


def bit_chunks(array: np.ndarray, indices: np.ndarray) -> Iterator[np.ndarray]:
    """Black and white pictures as rows of bits, (n, pixels / 8), channel by channel."""
    for chunk in _chunks(array, indices):
        yield np.packbits(np.moveaxis(chunk, 3, 1).reshape(len(chunk), -1) != 0, axis=1)


def _chunks(array: np.ndarray, indices: np.ndarray) -> Iterator[np.ndarray]:
    length = max(1, _CHUNK_BYTES // (array[0].size * array.itemsize))
    for start in range(0, len(indices), length):
        yield array[indices[start : start + length]]


def _only_pictures(path: Path) -> str:
    """The name of the one array in an archive with three or four axes, found by its headers alone."""
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = npy.read_magic(file)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shapes[name.removesuffix(".npy")] = read(file)[0]
    pictures = [name for name, shape in shapes.items() if len(shape) in (3, 4)]
    if len(pictures) != 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise UserError(f"{path} has {len(pictures)} arrays of pictures; name one, as in {path}:NAME (it has {found})")
    return pictures[0]
