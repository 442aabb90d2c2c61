"""CelebA: 202,599 aligned faces of 178x218 with the partition of its authors.

Liu et al., *Deep learning face attributes in the wild*, 2015. The attributes are not loaded: they
are labels of content, not factors that generate an image.
"""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import CelebA
from controlvae.lab.data.cache import cached_array, fingerprint_files
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.images.decoding import EncodedImages, decode_image_files
from controlvae.lab.data.images.image_files import check_image_files, list_image_files
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.splits import subset_indices
from controlvae.lab.reading import MAX_TABLE_BYTES, read_bytes

IMAGE_PATHS = ("img_align_celeba", "img_align_celeba.zip")
# As published, and as distributed on Kaggle.
PARTITION_FILES = ("list_eval_partition.txt", "list_eval_partition.csv")
NEEDS = (
    f"{' or '.join(IMAGE_PATHS)} (1.4 GB) and next to it {PARTITION_FILES[0]} "
    f"(mmlab.ie.cuhk.edu.hk/projects/CelebA.html); here or in celeba/"
)
_REMEDY = "unpack or download it again, or set data.unreadable=skip to skip such images"
_SPLIT_NUMBERS = {"train": 0, "valid": 1, "test": 2}
_SPLIT_NAMES = {"train": "the training set", "valid": "the validation set", "test": "the test set"}


def load_celeba(settings: CelebA, root: Path | None = None) -> ByteImages:
    """Load the faces of a split."""
    path = find_celeba(root)
    if path is None:
        raise UserError(f"no CelebA in {', '.join(map(str, data_roots(root)))}; it needs {NEEDS}")
    every, stamp = list_image_files(path)
    table = _find_partition(path)
    stamp += fingerprint_files([table])
    skip, size, fit = settings.unreadable == "skip", settings.size, settings.fit
    images = _select_split(every, table, _SPLIT_NUMBERS[settings.split], skip)
    usable, skipped = np.arange(len(images.names)), ""
    if skip:  # otherwise a file is checked when it is decoded
        _, usable, skipped = check_image_files(images, fit, skip, stamp, settings.split)
    chosen = usable[subset_indices(len(usable), settings.images)]
    shape = (size, size, 3)
    rows = cached_array(
        f"celeba-{settings.split}-{size}",
        (path.absolute(), settings),
        stamp,
        (len(chosen), *shape),
        np.uint8,
        lambda: decode_image_files(images, chosen, shape, size, fit),
    )
    crop = f"the middle {fit}x{fit}, " if isinstance(fit, int) else ""
    method = " by squeezing" if fit == "stretch" else ""
    source = f"CelebA from {path}: {crop}resized to {size}x{size}{method}{skipped}"
    flat = torch.from_numpy(rows.reshape(len(rows), -1))
    return ByteImages(flat, (3, size, size), source, _SPLIT_NAMES[settings.split])


def find_celeba(root: Path | None = None) -> Path | None:
    """Return the folder or archive of faces in the first data folder that has one, or None."""
    folders = [place for folder in data_roots(root) for place in (folder, folder / "celeba")]
    paths = (folder / name for folder in folders for name in IMAGE_PATHS)
    return next((path for path in paths if path.exists()), None)


def describe_celeba(root: Path | None = None) -> str:
    """Return the path of the faces, or "no file"."""
    return str(find_celeba(root) or "no file")


def _find_partition(path: Path) -> Path:
    tables = (path.parent / name for name in PARTITION_FILES)
    table = next((table for table in tables if table.is_file()), None)
    if table is None:
        raise UserError(f"{path} needs {PARTITION_FILES[0]} next to it, which defines its splits")
    return table


def _select_split(images: EncodedImages, table: Path, number: int, skip: bool) -> EncodedImages:
    """Return the images of one split.

    Every image must be in the table. Every line of the table must have its image, unless missing
    images are skipped: they then come last and cannot be read.
    """
    numbers = _read_partition(table)
    names = [PurePosixPath(name).name for name in images.names]
    missing = sorted(numbers.keys() - set(names))
    unlisted = sorted(set(names) - numbers.keys())
    mismatch = f"{table} and {images.path} do not match"
    if unlisted:
        raise UserError(f"{mismatch}: {unlisted[0]} is missing in the table")
    if missing and not skip:
        raise UserError(f"{mismatch}: {missing[0]} is missing in the images; {_REMEDY}")
    selected = [index for index, name in enumerate(names) if numbers[name] == number]
    missing_here = [name for name in missing if numbers[name] == number]
    # An index beyond `selected` belongs to a missing image: reading it fails.
    return EncodedImages(
        images.path,
        [*(images.names[index] for index in selected), *missing_here],
        lambda at: images.read(selected[at]),
        _REMEDY,
    )


def _read_partition(table: Path) -> dict[str, int]:
    """Read the split number of each image name."""
    try:
        text = read_bytes(table, MAX_TABLE_BYTES).decode("utf-8-sig")
        lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
        return {name: int(number) for name, number in lines if name != "image_id"}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{table} cannot be read as lines of an image name and a split number: {error}"
        ) from None


SPECS = [
    DatasetSpec(
        "celeba",
        CelebA,
        load_celeba,
        about="CelebA: 162,770 aligned training faces, 19,867 validation and 19,962 test faces, "
        "178x218: --set 'data=CelebA()', or CelebA(64, fit=148) for 64x64 of the middle 148x148",
        needs=f"{NEEDS}. Decoded once and cached (8 GB at 128). The presets and table-celeba use "
        "celeba/celeba_10k_89x109.npz instead: the first 10,000 faces, halved by "
        "examples/first_faces.py",
        describe_files=describe_celeba,
        test_settings=lambda settings, root: replace(settings, split="test", images=None),
        validation_settings=lambda settings: replace(settings, split="valid", images=None),
    )
]
