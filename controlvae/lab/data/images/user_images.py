"""A user's own pictures: a folder, a zip, a NumPy array or a data set of `datasets`, with their table of factors."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from controlvae.errors import FactorsError, UserError
from controlvae.lab.config import Images
from controlvae.lab.data import huggingface as hub
from controlvae.lab.data.cache import cached_array, fingerprint
from controlvae.lab.data.dataset import BinaryImages, ByteImages
from controlvae.lab.data.factors import Factors, read_factors
from controlvae.lab.data.images import numpy_files as arrays
from controlvae.lab.data.images.decoding import SUFFIXES, Encoded, decode_all, in_chunks, resized
from controlvae.lab.data.images.image_files import check_image_files
from controlvae.lab.data.paths import brings_test, data_roots, resolve_path
from controlvae.lab.data.source import Source
from controlvae.lab.data.splits import describe_split, split_indices, subset

_ADVICE = "name the folder it is in by --data-root, or give its path by --set data.path=...; see controlvae data"
_NOTHING = Factors((), np.empty((0, 0), np.int64))


def load(settings: Images, root: Path | None = None) -> ByteImages | BinaryImages:
    """The pictures a run asks for, as bytes, or as bits where they are black and white."""
    path, key = resolve_path(settings.path, root, advice=_ADVICE)
    if hub.is_copy(path):
        return _from_copy(settings, path, key, root)
    if not arrays.is_array(path):
        return _from_files(settings, *encoded(path), root)
    stamp = fingerprint([path])
    pictures = arrays.read(path, key, stamp)
    if isinstance(pictures, Encoded):
        return _from_files(settings, pictures, stamp, root)
    return _from_array(settings, path, pictures, stamp, root)


def encoded(path: Path) -> tuple[Encoded, str]:
    """The image files in a folder or a zip, and their fingerprint."""
    try:
        pictures = _zip(path) if path.is_file() else _folder(path)
        return pictures, fingerprint(
            [path] if path.is_file() else [path / name for name in pictures.names]
        )
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def found(root: Path | None = None) -> str:
    """What in the data folders may hold pictures, for people."""
    near = [
        place
        for folder in data_roots(root)
        for depth in ("*", "*/*")
        for place in sorted(folder.glob(depth))
    ]
    files = [str(place) for place in near if arrays.is_array(place) or _holds_pictures(place)]
    folders = sorted({str(place.parent) for place in near if _is_picture(place.name)})
    return ", ".join(folders + files) or "no file"


def _holds_pictures(path: Path) -> bool:
    """Whether it is a zip with a picture in it, by the names within."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(_is_picture(name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _from_copy(
    settings: Images, path: Path, column: str | None, root: Path | None
) -> ByteImages | BinaryImages:
    copy, stamp = hub.open_copy(path), fingerprint(hub.files(path))
    if not copy.parted:
        return _from_files(settings, copy.whole().pictures(column), stamp, root)
    own, undivided = copy.split(settings.split), replace(settings, held_out=0.0, split="train")
    return replace(
        _from_files(undivided, own.pictures(column), stamp, root),
        split=f"its own {own.where.name} part",
    )


def _from_files(
    settings: Images, pictures: Encoded, stamp: str, root: Path | None
) -> ByteImages | BinaryImages:
    path = pictures.where
    sizes, taken, left_out = check_image_files(
        pictures, settings.fit, settings.unreadable == "skip", stamp
    )
    shape = _common_shape(settings, pictures, sizes, taken)
    factors = _factors(settings, path, len(sizes), pictures.names, root)
    chosen = taken[_choice(settings, len(taken))]
    rows = cached_array(
        "images",
        _key(settings, path),
        stamp,
        (len(chosen), *shape),
        np.uint8,
        lambda: decode_all(pictures, chosen, shape, settings.size, settings.fit),
    )
    binary = _fits_bits(shape) and arrays.values_of(rows).binary
    if binary:
        rows = np.concatenate(list(arrays.bit_chunks(rows, np.arange(len(rows)))))
    changed = (sizes[taken, :2] != shape[:2]).any() or isinstance(settings.fit, int)
    source = _source(path, shape, binary, settings if changed else None) + left_out
    return _examples(settings, rows, shape, binary, source, len(taken), factors, chosen)


def _from_array(
    settings: Images, path: Path, array: np.ndarray, stamp: str, root: Path | None
) -> ByteImages | BinaryImages:
    height, width, channels = array.shape[1:]
    if isinstance(settings.fit, int) and settings.fit > min(height, width):
        raise UserError(
            f"the pictures in {path} are {width}x{height}, too small for fit={settings.fit}; set data.fit"
        )
    values = arrays.values_of(array)
    factors = _factors(settings, path, len(array), None, root)
    chosen = _choice(settings, len(array))
    resize = settings.size is not None and (
        (height, width) != (settings.size,) * 2 or isinstance(settings.fit, int)
    )
    shape = (
        (settings.size or height, settings.size or width, channels)
        if resize
        else (height, width, channels)
    )
    binary = values.binary and not resize and _fits_bits(shape)

    def chunks() -> Iterator[np.ndarray]:
        if binary:
            return arrays.bit_chunks(array, chosen)
        if resize:
            return in_chunks(
                lambda index: _resized(settings, array, index, values.white, path), chosen, shape
            )
        return arrays.byte_chunks(array, chosen, values.white, path)

    ready = (
        array.dtype == np.uint8
        and values.white == 255
        and array.flags.c_contiguous
        and len(chosen) == len(array)
    )
    if ready and not binary and not resize:
        rows = array  # where it lies: a .npy file stays on disk
    else:
        row_shape = (height * width * channels // 8,) if binary else shape
        rows = cached_array(
            "images", _key(settings, path), stamp, (len(chosen), *row_shape), np.uint8, chunks
        )
    source = _source(path, shape, binary, settings if resize else None)
    return _examples(settings, rows, shape, binary, source, len(array), factors, chosen)


def _examples(
    settings: Images,
    rows: np.ndarray,
    shape: tuple[int, int, int],
    binary: bool,
    source: str,
    count: int,
    factors: Factors,
    chosen: np.ndarray,
) -> ByteImages | BinaryImages:
    height, width, channels = shape
    return (BinaryImages if binary else ByteImages)(
        torch.from_numpy(rows.reshape(len(rows), -1)),
        (channels, height, width),
        source,
        describe_split(count, settings.split, settings.held_out),
        factors.classes[chosen] if factors.names else None,
        factors.names,
        factors.unordered,
        factors.levels,
    )


def _choice(settings: Images, count: int) -> np.ndarray:
    part = split_indices(count, settings.split, settings.held_out)
    return part[subset(len(part), settings.images)]


def _fits_bits(shape: tuple[int, int, int]) -> bool:
    return np.prod(shape) % 8 == 0


def _resized(settings: Images, array: np.ndarray, index: int, white: int, path: Path) -> np.ndarray:
    from PIL import Image

    pixels = arrays.to_bytes(array[index], white, path)
    planes = [
        Image.fromarray(np.ascontiguousarray(pixels[:, :, channel]))
        for channel in range(pixels.shape[2])
    ]
    return np.concatenate([resized(plane, settings.size, settings.fit) for plane in planes], axis=2)


def _common_shape(
    settings: Images, pictures: Encoded, sizes: np.ndarray, taken: np.ndarray
) -> tuple[int, int, int]:
    channels = int(sizes[taken, 2].max())  # one picture in colour makes all of them colour
    if settings.size is not None:
        return settings.size, settings.size, channels
    height, width = (int(side) for side in sizes[taken[0], :2])
    odd = taken[(sizes[taken, :2] != (height, width)).any(axis=1)]
    if len(odd):
        other = "{1}x{0}".format(*sizes[odd[0], :2])
        raise UserError(
            f"pictures in {pictures.where} differ in size: {pictures.names[taken[0]]} is {width}x{height}, "
            f"{pictures.names[odd[0]]} is {other}; set data.size, e.g. data.size=64"
        )
    return height, width, channels


def _key(settings: Images, path: Path) -> tuple[object, ...]:
    return path.absolute(), replace(settings, factors=None)


def _source(path: Path, shape: tuple[int, int, int], binary: bool, resize: Images | None) -> str:
    height, width, channels = shape
    kind = (
        "black and white"
        if binary
        else {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    )
    how = "" if resize is None else f", {'' if resize.fit == 'stretch' else 'cropped and '}resized"
    return f"{path}: {width}x{height} {kind}{how}"


def _factors(
    settings: Images, path: Path, count: int, files: Sequence[str] | None, root: Path | None
) -> Factors:
    if settings.factors is None:
        return _NOTHING
    try:
        table, wanted = resolve_path(
            settings.factors, root, beside=path if path.is_dir() else path.parent
        )
        return read_factors(table, wanted, count, files)
    except UserError as error:
        raise FactorsError(str(error)) from None


def _folder(path: Path) -> Encoded:
    """Everything below a folder. Links to folders are followed, each folder once and none above: links may go round."""
    names: list[str] = []
    seen = {str(above) for above in Path(os.path.realpath(path)).parents}
    for folder, inner, files in os.walk(path, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        names += [
            (Path(folder) / name).relative_to(path).as_posix()
            for name in files
            if _is_picture(name)
        ]
    names = _sorted(names, path)
    return Encoded(path, names, lambda index: (path / names[index]).read_bytes())


def _zip(path: Path) -> Encoded:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is neither a folder of pictures, a .zip of them, nor a .npy or .npz array"
        ) from None
    names = _sorted([name for name in archive.namelist() if _is_picture(name)], path)
    return Encoded(path, names, lambda index: archive.read(names[index]))


def _sorted(names: list[str], path: Path) -> list[str]:
    if not names:
        raise UserError(f"no pictures in {path}; they end in {' '.join(SUFFIXES)}")
    return sorted(names)


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    # What a Mac puts into its archives, and hidden folders, which are passed over on disk too.
    hidden = path.parts[0] == "__MACOSX" or any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _raise(error: OSError) -> None:
    raise error


def _test(settings: Images, root: Path | None) -> Images | None:
    apart = settings.held_out > 0 or brings_test(settings.path, root)
    return replace(settings, split="test", images=None) if apart else None


SOURCE = Source(
    "images",
    Images,
    load,
    found=found,
    test=_test,
    about="your own pictures, with a table of factors if you have one: --set data='Images(\"my/folder\", size=64)'",
    needs="a folder or .zip of image files, or a .npy or .npz array: (N, H, W), (N, H, W, C) or (N, C, H, W) of uint8, "
    f"bool, or floats in [0, 1]; or {hub.NEEDS}, whose test split is held out; a path as given, or inside a data "
    "folder",
)
