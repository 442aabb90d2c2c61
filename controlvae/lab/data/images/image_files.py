"""Image files in a folder or zip: listing them, and finding those that can be used."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit
from controlvae.lab.data.cache import cached_array, fingerprint_files, write_name_list
from controlvae.lab.data.images.decoding import (
    SUFFIXES,
    EncodedImages,
    image_shapes,
    too_small_error,
    unreadable_error,
)
from controlvae.lab.reading import MAX_IMAGE_BYTES, open_zip, read_bytes, read_member

_MIN_CACHED_IMAGES = 1_000  # sizes of fewer images are not cached
_MAX_LISTED_NAMES = 5


class ImageFileCheck(NamedTuple):
    """Result of inspecting image files."""

    sizes: np.ndarray  # height, width and channels of every image, (count, 3); zeros if unreadable
    indices: np.ndarray  # positions of usable images
    skipped: str  # description of skipped images, to append to the data's source; or empty


def list_image_files(path: Path) -> tuple[EncodedImages, str]:
    """Return the image files in a folder or zip, sorted by name, and their fingerprint.

    Raises:
        UserError: The path cannot be read or holds no images.
    """
    try:
        if not path.is_dir():
            return _list_zip(path), fingerprint_files([path])
        images = _list_folder(path)
        return images, fingerprint_files([path / name for name in images.names])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def is_image_name(name: str) -> bool:
    """Return whether a path inside a folder or zip names an image that is not hidden."""
    path = PurePosixPath(name)
    if not path.parts:
        return False
    # __MACOSX is added to archives by macOS. Hidden folders are skipped on disk, too.
    is_hidden = path.parts[0] == "__MACOSX" or any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not is_hidden


def is_zip_with_images(path: Path) -> bool:
    """Return whether a file is a zip that contains an image, judging by names."""
    try:
        with open_zip(path) as archive:
            return any(is_image_name(name) for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def check_image_files(
    images: EncodedImages, fit: Fit, skip: bool, stamp: str, split: str = ""
) -> ImageFileCheck:
    """Inspect every file and return which ones can be used.

    Args:
        images: The files.
        fit: How images become square. A number of pixels makes smaller images unusable.
        skip: Skip unusable files instead of raising an error.
        stamp: The fingerprint of the files.
        split: The name of the split, if one location holds several.

    Raises:
        UserError: No file can be used, or one cannot be used and `skip` is false.
    """
    sizes = _cached_sizes(images, skip, stamp, split)
    is_readable = sizes[:, 0] > 0
    is_small = np.zeros_like(is_readable)
    if isinstance(fit, int):
        is_small = is_readable & (sizes[:, :2].min(axis=1) < fit)
    if is_small.any() and not skip:
        first = int(is_small.argmax())
        raise unreadable_error(images, first, too_small_error(fit, *sizes[first, :2]))
    is_usable = is_readable & ~is_small
    if not is_usable.any():
        raise UserError(
            f"none of the {len(sizes):,} images in {images.path} can be used; "
            f"set data.unreadable=refuse to see why"
        )
    skipped = ""
    if not is_usable.all():
        reasons = [
            *(["unreadable"] if not is_readable.all() else []),
            *([f"too small for fit={fit}"] if is_small.any() else []),
        ]
        names = [images.names[int(index)] for index in np.flatnonzero(~is_usable)]
        listed = _list_names(names, (images.path.absolute(), fit, split))
        count = f"{len(names):,} of {len(sizes):,}"
        skipped = f"; {count} skipped as {' or '.join(reasons)} ({listed})"
    return ImageFileCheck(sizes, np.flatnonzero(is_usable), skipped)


def _cached_sizes(images: EncodedImages, skip: bool, stamp: str, split: str) -> np.ndarray:
    def inspect() -> Iterator[np.ndarray]:
        table, errors = image_shapes(images, decode=skip)
        if errors and not skip:
            raise unreadable_error(images, min(errors), errors[min(errors)])
        yield table

    shape, key = (len(images.names), 3), (images.path.absolute(), skip, split)
    min_bytes = _MIN_CACHED_IMAGES * 12
    return cached_array("sizes", key, stamp, shape, np.int32, inspect, min_bytes)


def _list_names(names: Sequence[str], about: object) -> str:
    """Format up to five names, then a count and the path of the full list."""
    listed, more = ", ".join(names[:_MAX_LISTED_NAMES]), len(names) - _MAX_LISTED_NAMES
    if more <= 0:
        return listed
    file = write_name_list("skipped", about, names)
    return f"{listed} and {more:,} more" + (f"; all of them are listed in {file}" if file else "")


def _list_folder(path: Path) -> EncodedImages:
    # Links to folders are followed. Each folder is visited once and no parent is, because links
    # may form a cycle.
    names: list[str] = []
    visited = {str(parent) for parent in Path(os.path.realpath(path)).parents}
    for folder, inner, files in os.walk(path, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:
            inner.clear()
            continue
        visited.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        relative = Path(folder).relative_to(path)
        names += [(relative / name).as_posix() for name in files if is_image_name(name)]
    names = _sort_names(names, path)
    return EncodedImages(
        path, names, lambda index: read_bytes(path / names[index], MAX_IMAGE_BYTES)
    )


def _list_zip(path: Path) -> EncodedImages:
    try:
        archive = open_zip(path)
    except (ValueError, zipfile.BadZipFile):
        raise UserError(
            f"{path} is neither a folder of images, a .zip of them, nor a .npy or .npz array"
        ) from None
    names = _sort_names([name for name in archive.namelist() if is_image_name(name)], path)
    return EncodedImages(
        path, names, lambda index: read_member(archive, names[index], MAX_IMAGE_BYTES)
    )


def _sort_names(names: list[str], path: Path) -> list[str]:
    if not names:
        raise UserError(f"no images in {path}; their names must end in {' '.join(SUFFIXES)}")
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error
