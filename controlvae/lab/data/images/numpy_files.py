"""Pictures in NumPy files: which array it is, how its axes lie, what its values mean."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.data.cache import cached_array
from controlvae.lab.data.images.decoding import Encoded

_CHUNK_BYTES = 16 << 20
_ENCODED = (
    "jpg",
    "jpeg",
    "png",
    "webp",
)  # members that hold files end to end, with `offsets` beside them
FAULTS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)  # of a damaged file

Layout = Literal["NHW", "NHWC", "NCHW"]


class Values(NamedTuple):
    """What the numbers of an array mean."""

    white: int  # 1 or 255
    binary: bool  # nothing but black and white


class _Member(NamedTuple):
    """An array of an archive, by its header."""

    name: str  # of the file in the archive
    shape: tuple[int, ...]
    fortran: bool  # the first axis runs fastest
    dtype: np.dtype


def is_array(path: Path) -> bool:
    """Whether a file holds arrays, by its name."""
    return path.suffix.lower() in (".npy", ".npz")


def read(path: Path, key: str | None, stamp: str) -> np.ndarray | Encoded:
    """The pictures of a `.npy` or `.npz` file: (count, height, width, channels), or encoded ones.

    A `.npy` file is memory-mapped where it lies, a large array of an archive in the cache. `stamp` is the file's
    fingerprint.
    """
    try:
        if path.suffix.lower() == ".npy":
            array = npy.open_memmap(path, mode="c")
            return channels_last(array, layout_of(array.shape, array.dtype, path))
        members = _members(path)
        if key is not None and key not in members:
            raise unknown_name_error(f"array in {path}", key, members)
        if key is None and "offsets" in members:
            for name in set(_ENCODED).intersection(members):
                files, offsets = (
                    _unpacked(path, members[each], stamp) for each in (name, "offsets")
                )
                return end_to_end(files, offsets, path)
        member = members[key or _only_pictures(members, path)]
        layout = layout_of(member.shape, member.dtype, path)
        return channels_last(_unpacked(path, member, stamp), layout)
    except FAULTS as error:
        raise UserError(f"{path} cannot be read as pictures: {error}") from None


def end_to_end(data: np.ndarray, offsets: np.ndarray, path: Path) -> Encoded:
    """Files stored one after another: number i lies at `offsets[i]` up to `offsets[i + 1]`."""
    if (
        len(offsets) < 2
        or offsets[0] != 0
        or offsets[-1] != len(data)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError("its offsets do not cut up its data")
    names = [str(index) for index in range(len(offsets) - 1)]
    return Encoded(path, names, lambda index: data[offsets[index] : offsets[index + 1]].tobytes())


def layout_of(shape: tuple[int, ...], dtype: np.dtype, path: Path) -> Layout:
    """How the axes of pictures lie. At most four channels; where both ends could be, they come last."""
    if dtype.kind not in "bf" and dtype != np.uint8:
        raise UserError(f"{path} holds {dtype}; pictures are uint8, bool, or floats in [0, 1]")
    match shape:
        case _ if 0 in shape:
            pass
        case (_, side, 1 | 3 | 4 as width) if (
            side != width
        ):  # grey pictures so narrow are none, but for small squares
            raise UserError(
                f"{path} has shape {shape}, one picture by its looks; give it a first axis: array[None]"
            )
        case (_, _, _):
            return "NHW"
        case (_, _, _, channels) if channels <= 4:
            return "NHWC"
        case (_, channels, _, _) if channels <= 4:
            return "NCHW"
    raise UserError(
        f"{path} has shape {shape}; pictures are (N, H, W), (N, H, W, C) or (N, C, H, W), C up to 4"
    )


def channels_last(array: np.ndarray, layout: Layout) -> np.ndarray:
    """A view as (count, height, width, channels)."""
    match layout:
        case "NHW":
            return array[..., None]
        case "NHWC":
            return array
        case "NCHW":
            return np.moveaxis(array, 1, 3)


def values_of(array: np.ndarray) -> Values:
    """Looks until it has seen a grey value: in photographs at once, in black and white pictures to the end."""
    if array.dtype == bool:
        return Values(1, True)
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
        if not (
            low >= -1e-6 and high <= 1 + 1e-6
        ):  # not the other way round: NaN fails every comparison
            raise UserError(
                f"{path} holds values from {low:g} to {high:g}; floats must lie in [0, 1], so scale them"
            )
        return np.rint(chunk.clip(0, 1).astype(np.float32) * 255).astype(np.uint8)
    return chunk.astype(np.uint8) * np.uint8(255) if white == 1 else chunk


def byte_chunks(
    array: np.ndarray, indices: np.ndarray, white: int, path: Path
) -> Iterator[np.ndarray]:
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


def _only_pictures(members: dict[str, _Member], path: Path) -> str:
    """The name of the one array with three or four axes."""
    pictures = [name for name, member in members.items() if len(member.shape) in (3, 4)]
    if len(pictures) != 1:
        found = ", ".join(f"{name} {member.shape}" for name, member in members.items())
        raise UserError(
            f"{path} has {len(pictures)} arrays of pictures; name one, as in {path}:NAME (it has {found})"
        )
    return pictures[0]


def _members(path: Path) -> dict[str, _Member]:
    members = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):  # a note that somebody put beside the arrays
                continue
            with archive.open(name) as file:
                members[name.removesuffix(".npy")] = _Member(name, *_header(file))
    return members


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of a `.npy` file, whose values come next."""
    version = npy.read_magic(file)
    return (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)


def _unpacked(path: Path, member: _Member, stamp: str) -> np.ndarray:
    """An array of an archive, read a block at a time: into the cache where it is large."""
    count, size = math.prod(member.shape), member.dtype.itemsize

    def blocks() -> Iterator[np.ndarray]:
        with zipfile.ZipFile(path) as archive, archive.open(member.name) as file:
            _header(file)
            length = _CHUNK_BYTES // size
            for start in range(0, count, length):
                expected = min(length, count - start)
                yield np.frombuffer(file.read(expected * size), member.dtype).reshape(expected)

    flat = cached_array(
        "array", (path.absolute(), member.name), stamp, (count,), member.dtype, blocks
    )
    return flat.reshape(member.shape, order="F" if member.fortran else "C")
