"""Images in NumPy files: selection of the array, layout of its axes, and range of its values."""

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.data.cache import cached_array
from controlvae.lab.data.images.decoding import EncodedImages
from controlvae.lab.reading import (
    MAX_LOADED_BYTES,
    READ_ERRORS,
    check_array,
    check_regular_file,
    open_file,
    open_zip,
    shorten,
)

_CHUNK_BYTES = 16 << 20
# Arrays that hold concatenated files; an array `offsets` says where each begins.
_ENCODED_MEMBERS = ("jpg", "jpeg", "png", "webp")

Layout = Literal["NHW", "NHWC", "NCHW"]


class ValueRange(NamedTuple):
    """Range of an image array's values."""

    white: int  # 1 or 255
    binary: bool  # all values are black or white


class _Member(NamedTuple):
    """Header of an array in an archive."""

    file_name: str
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype


def is_array_file(path: Path) -> bool:
    """Return whether a file holds arrays, judging by its name."""
    return path.suffix.lower() in (".npy", ".npz")


def read_array_file(path: Path, key: str | None, stamp: str) -> np.ndarray | EncodedImages:
    """Read the images of a `.npy` or `.npz` file.

    A `.npy` file is memory-mapped. A large array of an archive is unpacked into the cache.

    Args:
        path: The file.
        key: The name of the array. None selects the only array of images.
        stamp: The file's fingerprint.

    Returns:
        An array, (count, height, width, channels), or encoded images.

    Raises:
        UserError: The file cannot be read as images.
    """
    try:
        check_regular_file(path)
        if path.suffix.lower() == ".npy":
            with open_file(path) as file:
                _read_header(file)
            array = npy.open_memmap(path, mode="c")
            return channels_last(array, infer_layout(array.shape, array.dtype, path))
        members = _read_headers(path)
        if key is not None and key not in members:
            raise unknown_name_error(f"array in {path}", key, members)
        if key is None and "offsets" in members:
            for name in set(_ENCODED_MEMBERS).intersection(members):
                names = (name, "offsets")
                files, offsets = (_read_member(path, members[each], stamp) for each in names)
                return split_files(files, offsets, path)
        member = members[key or _find_image_array(members, path)]
        layout = infer_layout(member.shape, member.dtype, path)
        return channels_last(_read_member(path, member, stamp), layout)
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read as images: {describe_error(error)}") from None


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, or its kind if it has no text."""
    lines = shorten(str(error), 200).splitlines()
    return lines[0] if lines else type(error).__name__


def split_files(data: np.ndarray, offsets: np.ndarray, path: Path) -> EncodedImages:
    """Return concatenated files as encoded images.

    Args:
        data: The bytes of all files.
        offsets: File i extends from `offsets[i]` to `offsets[i + 1]`.
        path: The archive, for error messages.
    """
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or data.dtype != np.uint8:
        raise ValueError("offsets must be a vector of whole numbers, and the data bytes")
    covers_data = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(data)
    if not covers_data or (np.diff(offsets) < 0).any():
        raise ValueError("offsets must rise from 0 to the length of the data")
    names = [str(index) for index in range(len(offsets) - 1)]
    return EncodedImages(
        path, names, lambda index: data[offsets[index] : offsets[index + 1]].tobytes()
    )


def infer_layout(shape: tuple[int, ...], dtype: np.dtype, path: Path) -> Layout:
    """Return the layout of an image array with at most four channels.

    If both the second and the last axis could be channels, the last axis is taken.

    Args:
        shape: The shape of the array.
        dtype: Its type.
        path: The file, for error messages.

    Raises:
        UserError: The array does not hold images.
    """
    if dtype.kind not in "bf" and dtype != np.uint8:
        raise UserError(f"{path} holds {dtype}; images are uint8, bool, or floats in [0, 1]")
    match shape:
        case _ if 0 in shape:
            pass
        # Such narrow grey images are unlikely, except for small squares.
        case (_, side, 1 | 3 | 4 as width) if side != width:
            raise UserError(
                f"{path} has shape {shape}, which looks like a single image; "
                f"give it a first axis: array[None]"
            )
        case (_, _, _):
            return "NHW"
        case (_, _, _, channels) if channels <= 4:
            return "NHWC"
        case (_, channels, _, _) if channels <= 4:
            return "NCHW"
    raise UserError(
        f"{path} has shape {shape}; images are (N, H, W), (N, H, W, C) or (N, C, H, W), C up to 4"
    )


def channels_last(array: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a view with shape (count, height, width, channels)."""
    match layout:
        case "NHW":
            return array[..., None]
        case "NHWC":
            return array
        case "NCHW":
            return np.moveaxis(array, 1, 3)


def value_range(array: np.ndarray) -> ValueRange:
    """Return the range of values. Reads chunks until one contains a grey value."""
    if array.dtype == bool:
        return ValueRange(1, True)
    whites = {1} if array.dtype.kind == "f" else {1, 255}
    for chunk in _chunks(array, np.arange(len(array))):
        whites = {white for white in whites if ((chunk == 0) | (chunk == white)).all()}
        if not whites:
            return ValueRange(1 if array.dtype.kind == "f" else 255, False)
    return ValueRange(min(whites), True)


def to_bytes(chunk: np.ndarray, white: int, path: Path) -> np.ndarray:
    """Convert values to uint8 from 0 to 255.

    Args:
        chunk: Booleans, bytes, or floats in [0, 1], which are rounded.
        white: The value of white, 1 or 255.
        path: The file, for error messages.

    Raises:
        UserError: Floats lie outside [0, 1].
    """
    if chunk.dtype.kind == "f":
        low, high = float(chunk.min()), float(chunk.max())
        # `not (...)`, because NaN fails every comparison.
        if not (low >= -1e-6 and high <= 1 + 1e-6):
            raise UserError(f"{path} holds values from {low:g} to {high:g}; scale floats to [0, 1]")
        return np.rint(chunk.clip(0, 1).astype(np.float32) * 255).astype(np.uint8)
    return chunk.astype(np.uint8) * np.uint8(255) if white == 1 else chunk


def byte_chunks(
    array: np.ndarray, indices: np.ndarray, white: int, path: Path
) -> Iterator[np.ndarray]:
    """Yield the images at these indices as bytes, in chunks.

    Args:
        array: Images, (count, height, width, channels).
        indices: Positions of the images.
        white: The value of white, 1 or 255.
        path: The file, for error messages.
    """
    return (to_bytes(chunk, white, path) for chunk in _chunks(array, indices))


def bit_chunks(array: np.ndarray, indices: np.ndarray) -> Iterator[np.ndarray]:
    """Yield black and white images as rows of bits, (n, pixels / 8), channel by channel."""
    for chunk in _chunks(array, indices):
        yield np.packbits(np.moveaxis(chunk, 3, 1).reshape(len(chunk), -1) != 0, axis=1)


def _chunks(array: np.ndarray, indices: np.ndarray) -> Iterator[np.ndarray]:
    length = max(1, _CHUNK_BYTES // (array[0].size * array.itemsize))
    for start in range(0, len(indices), length):
        yield array[indices[start : start + length]]


def _find_image_array(members: dict[str, _Member], path: Path) -> str:
    """Return the name of the only array with three or four axes."""
    names = [name for name, member in members.items() if len(member.shape) in (3, 4)]
    if len(names) != 1:
        every = ", ".join(f"{name} {member.shape}" for name, member in members.items())
        raise UserError(
            f"{path} has {len(names)} arrays of images; name one, as in {path}:NAME "
            f"(it has {every})"
        )
    return names[0]


def _read_headers(path: Path) -> dict[str, _Member]:
    members = {}
    with open_zip(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):  # other files, such as notes, may be in the archive
                continue
            with archive.open(name) as file:
                members[name.removesuffix(".npy")] = _Member(name, *_read_header(file))
    return members


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of a `.npy` file: shape, Fortran order and type."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, which is no number")
    check_array(shape, dtype.itemsize)
    return shape, fortran_order, dtype


def _read_member(path: Path, member: _Member, stamp: str) -> np.ndarray:
    """Read an array of an archive in blocks, into the cache if it is large."""
    count, size = math.prod(member.shape), member.dtype.itemsize

    def blocks() -> Iterator[np.ndarray]:
        with open_zip(path) as archive, archive.open(member.file_name) as file:
            _read_header(file)
            length = max(1, _CHUNK_BYTES // size)
            for start in range(0, count, length):
                expected = min(length, count - start)
                yield np.frombuffer(file.read(expected * size), member.dtype).reshape(expected)

    key = (path.absolute(), member.file_name)
    flat = cached_array("array", key, stamp, (count,), member.dtype, blocks)
    return flat.reshape(member.shape, order="F" if member.fortran_order else "C")


def load_array_file(path: Path, limit: int = MAX_LOADED_BYTES) -> dict[str, np.ndarray]:
    """Load the arrays of a `.npy` or `.npz` file into memory. That of a `.npy` file has no name.

    Args:
        path: The file.
        limit: Largest number of bytes of all arrays together.

    Raises:
        ValueError: The file is damaged, larger, or holds what is no array of numbers or text.
    """
    try:
        check_regular_file(path)
        if path.suffix.lower() == ".npy":
            with open_file(path) as file:
                _read_header(file)
            return {"": np.load(path, allow_pickle=False)}
        members = _read_headers(path)
        total = sum(
            check_array(each.shape, each.dtype.itemsize) * each.dtype.itemsize
            for each in members.values()
        )
        if total > limit:
            raise ValueError(f"it unpacks to {total / (1 << 30):,.1f} GB, which is not read")
        with open_zip(path) as archive:
            return {name: _load_member(archive, member) for name, member in members.items()}
    except (OSError, ValueError):
        raise
    except READ_ERRORS as error:
        raise ValueError(describe_error(error)) from None


def _load_member(archive: zipfile.ZipFile, member: _Member) -> np.ndarray:
    with archive.open(member.file_name) as file:
        _read_header(file)
        expected = math.prod(member.shape) * member.dtype.itemsize
        data = bytearray()
        while len(data) <= expected and (part := file.read(_CHUNK_BYTES)):
            data += part
    if len(data) != expected:
        raise ValueError(f"{member.file_name} has {len(data):,} bytes, expected {expected:,}")
    flat = np.frombuffer(data, member.dtype)
    return flat.reshape(member.shape, order="F" if member.fortran_order else "C")
