"""CIFAR-10: 60,000 colour photographs of 32x32, enlarged bilinearly as in the paper.

Krizhevsky, *Learning multiple layers of features from tiny images*, 2009. Read from archives of
lossless WebP files, from the published Python version (whose pickles are read without executing
anything), or from a `datasets` folder. They hold the same images in different orders. Classes are
not loaded: they are labels of content, not factors that generate an image.
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10
from controlvae.lab.data import huggingface
from controlvae.lab.data.cache import cached_array, fingerprint_files
from controlvae.lab.data.cifar10_pickle import read_pickled_batch
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.images import numpy_files
from controlvae.lab.data.images.decoding import EncodedImages, parallel_chunks, resize_image
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.splits import subset_indices
from controlvae.lab.reading import READ_ERRORS, check_regular_file, read_bytes

COUNTS = {"train": 50_000, "test": 10_000}
ARCHIVES = {
    "train": ("cifar10_train_part1.npz", "cifar10_train_part2.npz"),
    "test": ("cifar10_test.npz",),
}
PICKLES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
FOLDER, TAR = "cifar-10-batches-py", "cifar-10-python.tar.gz"
NEEDS = (
    f"{', '.join(ARCHIVES['train'] + ARCHIVES['test'])} (lossless WebP, 106 MB), or the folder "
    f"{FOLDER}, or {TAR} (170 MB, www.cs.toronto.edu/~kriz/cifar.html); here or in cifar10/. "
    f"Or cifar10/ as {huggingface.NEEDS}"
)
_MAX_PICKLE_BYTES = 64 << 20  # of a batch, which has 31 MB
_SIDE = 32


class SplitFiles(NamedTuple):
    """Files of one split."""

    kind: str  # webp, folder, tar or datasets
    paths: tuple[Path, ...]


def load_cifar10(settings: CIFAR10, root: Path | None = None) -> ByteImages:
    """Load the images of a split."""
    files = find_cifar10(settings.split, root)
    if files is None:
        places = ", ".join(map(str, data_roots(root)))
        raise UserError(f"no CIFAR-10 {settings.split} set in {places}; it needs {NEEDS}")
    chosen, size = subset_indices(COUNTS[settings.split], settings.images), settings.size
    rows = cached_array(
        f"cifar10-{settings.split}-{size}",
        settings,
        fingerprint_files(files.paths),
        (len(chosen), size, size, 3),
        np.uint8,
        lambda: _decode_chunks(files, settings.split, chosen, size),
    )
    source = f"CIFAR-10 from {files.paths[0].parent if files.kind == 'webp' else files.paths[0]}"
    source += f", resized from {_SIDE}x{_SIDE}" if size != _SIDE else ""
    split = "the training set" if settings.split == "train" else "the test set"
    return ByteImages(torch.from_numpy(rows.reshape(len(rows), -1)), (3, size, size), source, split)


def find_cifar10(split: str, root: Path | None = None) -> SplitFiles | None:
    """Return the files of a split in the first data folder that has all of them, or None.

    Raises:
        UserError: Only a part of the training set is present.
    """
    incomplete: list[Path] = []
    for folder in [place for each in data_roots(root) for place in (each, each / "cifar10")]:
        archives = tuple(folder / name for name in ARCHIVES[split])
        pickles = tuple(folder / FOLDER / name for name in PICKLES[split])
        missing = [path for path in archives if not path.is_file()]
        if not missing:
            return SplitFiles("webp", archives)
        if all(path.is_file() for path in pickles):
            return SplitFiles("folder", pickles)
        if (folder / TAR).is_file():
            return SplitFiles("tar", (folder / TAR,))
        if folder.name == "cifar10" and huggingface.is_datasets_folder(folder):
            return SplitFiles("datasets", (folder, *huggingface.arrow_files(folder)))
        if len(missing) < len(archives):
            incomplete = missing
    if incomplete:
        raise UserError(f"{incomplete[0]} is missing; the {split} set needs both of its files")
    return None


def describe_cifar10(root: Path | None = None) -> str:
    """Return the files of each split, or what is missing."""
    descriptions = []
    for split in COUNTS:
        try:
            files = find_cifar10(split, root)
        except UserError as error:
            descriptions.append(str(error))
        else:
            paths = ", ".join(map(str, files.paths)) if files else "no file"
            descriptions.append(f"{split}: {paths}")
    return "; ".join(descriptions)


def _decode_chunks(
    files: SplitFiles, split: str, chosen: np.ndarray, size: int
) -> Iterator[np.ndarray]:
    """Yield the chosen images, file by file: (n, size, size, 3)."""
    from PIL import Image

    start = 0
    for part in _read_parts(files, split):
        count = len(part.names) if isinstance(part, EncodedImages) else len(part)

        def decode(index: int, part: EncodedImages | np.ndarray = part) -> np.ndarray:
            if isinstance(part, EncodedImages):
                return resize_image(_decode(part, index), size)
            return resize_image(Image.fromarray(part[index]), size)

        here = chosen[(chosen >= start) & (chosen < start + count)] - start
        yield from parallel_chunks(decode, here, (size, size, 3))
        start += count
    if start != COUNTS[split]:
        folder = files.paths[0].parent
        raise UserError(f"{folder} holds {start:,} {split} images instead of {COUNTS[split]:,}")


def _read_parts(files: SplitFiles, split: str) -> Iterator[EncodedImages] | Iterator[np.ndarray]:
    match files.kind:
        case "webp":
            return _read_webp_parts(files)
        case "datasets":
            folder = huggingface.open_datasets_folder(files.paths[0])
            return iter([folder.split(split).images()])
    return _read_pickled_parts(files, split)


def _read_webp_parts(files: SplitFiles) -> Iterator[EncodedImages]:
    for path in files.paths:
        try:
            arrays = numpy_files.load_array_file(path)
            part = numpy_files.split_files(arrays["webp"], arrays["offsets"], path)
        except READ_ERRORS as error:
            reason = numpy_files.describe_error(error)
            raise UserError(f"{path} cannot be read as CIFAR-10: {reason}") from None
        yield part


def _decode(part: EncodedImages, index: int) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(part.read(index)), formats=("WEBP", "PNG"))
        if image.size != (_SIDE, _SIDE):
            raise ValueError(f"expected {_SIDE}x{_SIDE} pixels, got {image.size}")
        return image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise errors of all kinds
        raise UserError(f"image {index} in {part.path} cannot be read: {error}") from None


def _read_pickled_parts(files: SplitFiles, split: str) -> Iterator[np.ndarray]:
    for name, data in _read_pickles(files, split):
        try:
            part = read_pickled_batch(data)
        except Exception as error:  # a corrupt pickle raises errors of all kinds
            folder = files.paths[0].parent
            raise UserError(f"{name} in {folder} cannot be read as CIFAR-10: {error}") from None
        yield part


def _read_pickles(files: SplitFiles, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of the Python version."""
    names = PICKLES[split]
    try:
        if files.kind == "folder":
            yield from ((path.name, read_bytes(path)) for path in files.paths)
            return
        check_regular_file(files.paths[0])
        with tarfile.open(files.paths[0]) as archive:
            contents = {}
            # In the archive's own order: seeking back in a compressed file reads it again.
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in names else None
                if file is not None:
                    if member.size > _MAX_PICKLE_BYTES:
                        raise ValueError(f"{name} is larger than any of its parts")
                    contents[name] = file.read()
        yield from ((name, contents[name]) for name in names)
    except (*READ_ERRORS, tarfile.TarError) as error:
        raise UserError(f"{files.paths[0]} cannot be read as CIFAR-10: {error}") from None


SPECS = [
    DatasetSpec(
        "cifar10",
        CIFAR10,
        load_cifar10,
        about="CIFAR-10: 50,000 training and 10,000 test photographs in colour, 32x32, enlarged "
        "to 64x64 or 128x128",
        needs=f"{NEEDS}. Decoded once and cached in $CONTROLVAE_CACHE or ~/.cache/controlvae "
        "(2.5 GB at 128)",
        describe_files=describe_cifar10,
        test_settings=lambda settings, root: replace(settings, split="test", images=None),
    )
]
