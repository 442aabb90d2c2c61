"""User-supplied images: a folder, zip, NumPy array or `datasets` folder, with optional factors."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from controlvae.errors import FactorsError, UserError
from controlvae.lab.config import Images
from controlvae.lab.data import huggingface
from controlvae.lab.data.cache import cached_array, fingerprint_files
from controlvae.lab.data.dataset import BinaryImages, ByteImages
from controlvae.lab.data.factors import Factors, read_factors
from controlvae.lab.data.images import numpy_files
from controlvae.lab.data.images.decoding import (
    EncodedImages,
    decode_image_files,
    parallel_chunks,
    resize_image,
)
from controlvae.lab.data.images.image_files import (
    check_image_files,
    is_image_name,
    is_zip_with_images,
    list_image_files,
)
from controlvae.lab.data.paths import data_roots, has_test_split, resolve_path
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.splits import describe_split, split_indices, subset_indices

_ADVICE = (
    "name the folder it is in with --data-root, or give its path with --set data.path=...; "
    "see controlvae data"
)
_NO_FACTORS = Factors((), np.empty((0, 0), np.int64))
_Shape = tuple[int, int, int]  # height, width, channels


def load_user_images(settings: Images, root: Path | None = None) -> ByteImages | BinaryImages:
    """Load images as bytes, or as bits if they are black and white."""
    path, key = resolve_path(settings.path, root, advice=_ADVICE)
    if huggingface.is_datasets_folder(path):
        return _load_datasets_folder(settings, path, key, root)
    if not numpy_files.is_array_file(path):
        return _load_files(settings, *list_image_files(path), root)
    stamp = fingerprint_files([path])
    images = numpy_files.read_array_file(path, key, stamp)
    if isinstance(images, EncodedImages):
        return _load_files(settings, images, stamp, root)
    return _load_array(settings, path, images, stamp, root)


def describe_user_images(root: Path | None = None) -> str:
    """Return the paths in the data folders that may hold images."""
    places = [
        place
        for folder in data_roots(root)
        for pattern in ("*", "*/*")
        for place in sorted(folder.glob(pattern))
    ]
    files = [
        str(place)
        for place in places
        if numpy_files.is_array_file(place) or is_zip_with_images(place)
    ]
    folders = sorted({str(place.parent) for place in places if is_image_name(place.name)})
    return ", ".join(folders + files) or "no file"


def _load_datasets_folder(
    settings: Images, path: Path, column: str | None, root: Path | None
) -> ByteImages | BinaryImages:
    folder = huggingface.open_datasets_folder(path)
    stamp = fingerprint_files(huggingface.arrow_files(path))
    if not folder.has_test_split:
        return _load_files(settings, folder.undivided().images(column), stamp, root)
    split = folder.split(settings.split)
    undivided = replace(settings, held_out=0.0, split="train")
    images = _load_files(undivided, split.images(column), stamp, root)
    return replace(images, split=f"its own {split.path.name} part")


def _load_files(
    settings: Images, images: EncodedImages, stamp: str, root: Path | None
) -> ByteImages | BinaryImages:
    path = images.path
    skip = settings.unreadable == "skip"
    sizes, usable, skipped = check_image_files(images, settings.fit, skip, stamp)
    shape = _common_shape(settings, images, sizes, usable)
    factors = _load_factors(settings, path, len(sizes), images.names, root)
    chosen = usable[_choose(settings, len(usable))]
    rows = cached_array(
        "images",
        _cache_key(settings, path),
        stamp,
        (len(chosen), *shape),
        np.uint8,
        lambda: decode_image_files(images, chosen, shape, settings.size, settings.fit),
    )
    binary = _fits_bits(shape) and numpy_files.value_range(rows).binary
    if binary:
        rows = np.concatenate(list(numpy_files.bit_chunks(rows, np.arange(len(rows)))))
    is_resized = (sizes[usable, :2] != shape[:2]).any() or isinstance(settings.fit, int)
    source = _describe_source(path, shape, binary, settings if is_resized else None) + skipped
    return _build_dataset(settings, rows, shape, binary, source, len(usable), factors, chosen)


def _load_array(
    settings: Images, path: Path, array: np.ndarray, stamp: str, root: Path | None
) -> ByteImages | BinaryImages:
    height, width, channels = array.shape[1:]
    size, fit = settings.size, settings.fit
    if isinstance(fit, int) and fit > min(height, width):
        raise UserError(
            f"the images in {path} are {width}x{height}, too small for fit={fit}; set data.fit"
        )
    values = numpy_files.value_range(array)
    factors = _load_factors(settings, path, len(array), None, root)
    chosen = _choose(settings, len(array))
    resize = size is not None and ((height, width) != (size, size) or isinstance(fit, int))
    shape = (height, width, channels)
    if resize and size is not None:
        shape = (size, size, channels)
    binary = values.binary and not resize and _fits_bits(shape)

    def chunks() -> Iterator[np.ndarray]:
        if binary:
            return numpy_files.bit_chunks(array, chosen)
        if resize:
            return parallel_chunks(
                lambda index: _resize(settings, array[index], values.white, path), chosen, shape
            )
        return numpy_files.byte_chunks(array, chosen, values.white, path)

    is_byte_array = array.dtype == np.uint8 and values.white == 255 and array.flags.c_contiguous
    if is_byte_array and len(chosen) == len(array) and not binary and not resize:
        rows = array  # used in place: a .npy file stays on disk
    else:
        row_shape = (height * width * channels // 8,) if binary else shape
        key = _cache_key(settings, path)
        rows = cached_array("images", key, stamp, (len(chosen), *row_shape), np.uint8, chunks)
    source = _describe_source(path, shape, binary, settings if resize else None)
    return _build_dataset(settings, rows, shape, binary, source, len(array), factors, chosen)


def _build_dataset(
    settings: Images,
    rows: np.ndarray,
    shape: _Shape,
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


def _choose(settings: Images, count: int) -> np.ndarray:
    indices = split_indices(count, settings.split, settings.held_out)
    return indices[subset_indices(len(indices), settings.images)]


def _fits_bits(shape: _Shape) -> bool:
    return np.prod(shape) % 8 == 0


def _resize(settings: Images, image: np.ndarray, white: int, path: Path) -> np.ndarray:
    from PIL import Image

    pixels = numpy_files.to_bytes(image, white, path)
    planes = [
        Image.fromarray(np.ascontiguousarray(pixels[:, :, channel]))
        for channel in range(pixels.shape[2])
    ]
    resized = [resize_image(plane, settings.size, settings.fit) for plane in planes]
    return np.concatenate(resized, axis=2)


def _common_shape(
    settings: Images, images: EncodedImages, sizes: np.ndarray, usable: np.ndarray
) -> _Shape:
    channels = int(sizes[usable, 2].max())  # one colour image makes all of them colour
    if settings.size is not None:
        return settings.size, settings.size, channels
    height, width = (int(side) for side in sizes[usable[0], :2])
    others = usable[(sizes[usable, :2] != (height, width)).any(axis=1)]
    if len(others):
        other_height, other_width = sizes[others[0], :2]
        raise UserError(
            f"images in {images.path} differ in size: {images.names[usable[0]]} is "
            f"{width}x{height}, {images.names[others[0]]} is {other_width}x{other_height}; "
            f"set data.size, e.g. data.size=64"
        )
    return height, width, channels


def _cache_key(settings: Images, path: Path) -> tuple[object, ...]:
    return path.absolute(), replace(settings, factors=None)


def _describe_source(path: Path, shape: _Shape, binary: bool, resized: Images | None) -> str:
    height, width, channels = shape
    colours = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    kind = "black and white" if binary else colours
    change = ""
    if resized is not None:
        change = ", resized" if resized.fit == "stretch" else ", cropped and resized"
    return f"{path}: {width}x{height} {kind}{change}"


def _load_factors(
    settings: Images, path: Path, count: int, files: Sequence[str] | None, root: Path | None
) -> Factors:
    if settings.factors is None:
        return _NO_FACTORS
    folder = path if path.is_dir() else path.parent
    try:
        table, columns = resolve_path(settings.factors, root, extra_root=folder)
        return read_factors(table, columns, count, files)
    except UserError as error:
        raise FactorsError(str(error)) from None


def _test_settings(settings: Images, root: Path | None) -> Images | None:
    has_test_set = settings.held_out > 0 or has_test_split(settings.path, root)
    return replace(settings, split="test", images=None) if has_test_set else None


SPECS = [
    DatasetSpec(
        "images",
        Images,
        load_user_images,
        about="your images, with a table of factors if you have one: "
        "--set data='Images(\"my/folder\", size=64)'",
        needs="a folder or .zip of image files, or a .npy or .npz array: (N, H, W), (N, H, W, C) "
        "or (N, C, H, W) of uint8, bool, or floats in [0, 1]; "
        f"or {huggingface.NEEDS}, whose test split is the test set; "
        "a path as given, or inside a data folder",
        describe_files=describe_user_images,
        test_settings=_test_settings,
    )
]
