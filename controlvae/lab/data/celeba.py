"""CelebA: 202,599 aligned faces of 178x218, divided as its authors publish it.

Liu et al., *Deep learning face attributes in the wild*, 2015. Attributes are left out: they are labels of content, not
factors that a picture was made from.
"""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import CelebA
from controlvae.lab.data.cache import cached_array, fingerprint
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.images.decoding import Encoded, decode_all
from controlvae.lab.data.images.image_files import check_image_files
from controlvae.lab.data.images.user_images import encoded
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.source import Source
from controlvae.lab.data.splits import subset

PICTURES = ("img_align_celeba", "img_align_celeba.zip")
PARTITIONS = (
    "list_eval_partition.txt",
    "list_eval_partition.csv",
)  # as published, and as Kaggle has it
NEEDS = (
    f"{' or '.join(PICTURES)} (1.4 GB) and beside it {PARTITIONS[0]} (mmlab.ie.cuhk.edu.hk/projects/CelebA.html); "
    f"here or in celeba/"
)
_CURE = "unpack or download it again, or set data.unreadable=skip to leave such pictures out"
_NUMBERS = {"train": 0, "valid": 1, "test": 2}
_WORDS = {"train": "the training set", "valid": "the validation set", "test": "the test set"}


def load(settings: CelebA, root: Path | None = None) -> ByteImages:
    """The faces a run asks for."""
    path = find(root)
    if path is None:
        raise UserError(f"no CelebA in {', '.join(map(str, data_roots(root)))}; it needs {NEEDS}")
    every, stamp = encoded(path)
    table = _partition_beside(path)
    stamp += fingerprint([table])
    skip = settings.unreadable == "skip"
    pictures = _part(every, table, _NUMBERS[settings.split], skip)
    taken, left_out = np.arange(len(pictures.names)), ""
    if skip:  # else a file is looked at when it is decoded
        _, taken, left_out = check_image_files(pictures, settings.fit, skip, stamp, settings.split)
    chosen = taken[subset(len(taken), settings.images)]
    shape = (settings.size, settings.size, 3)
    rows = cached_array(
        f"celeba-{settings.split}-{settings.size}",
        (path.absolute(), settings),
        stamp,
        (len(chosen), *shape),
        np.uint8,
        lambda: decode_all(pictures, chosen, shape, settings.size, settings.fit),
    )
    part = f"the middle {settings.fit}x{settings.fit}, " if isinstance(settings.fit, int) else ""
    squeezed = " by squeezing" if settings.fit == "stretch" else ""
    source = (
        f"CelebA from {path}: {part}resized to {settings.size}x{settings.size}{squeezed}{left_out}"
    )
    flat = torch.from_numpy(rows.reshape(len(rows), -1))
    return ByteImages(flat, (3, settings.size, settings.size), source, _WORDS[settings.split])


def find(root: Path | None = None) -> Path | None:
    """The folder or the archive of faces in the first data folder that has one."""
    folders = [place for given in data_roots(root) for place in (given, given / "celeba")]
    return next(
        (path for folder in folders for name in PICTURES if (path := folder / name).exists()), None
    )


def found(root: Path | None = None) -> str:
    """What of it is there, for people."""
    path = find(root)
    return "no file" if path is None else str(path)


def _partition_beside(path: Path) -> Path:
    table = next((place for name in PARTITIONS if (place := path.parent / name).is_file()), None)
    if table is None:
        raise UserError(
            f"{path} is there, but no {PARTITIONS[0]} beside it, which says who is in which part"
        )
    return table


def _part(pictures: Encoded, table: Path, number: int, skip: bool) -> Encoded:
    """The pictures of one part. Every one must be in the table, and every line of that a picture.

    Where such may be skipped, a line without its picture is one that cannot be read, after all others.
    """
    try:
        lines = [
            line.replace(",", " ").split()
            for line in table.read_text(encoding="utf-8-sig").splitlines()
            if line.strip()
        ]
        split_indices = {name: int(number) for name, number in lines if name != "image_id"}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{table} cannot be read as lines of a picture's name and the number of its part: {error}"
        ) from None
    names = [PurePosixPath(name).name for name in pictures.names]
    missing = sorted(split_indices.keys() - set(names))
    strange = sorted(set(names) - split_indices.keys())
    if strange:
        raise UserError(
            f"{table} and {pictures.where} do not go together: {strange[0]} is missing in the table"
        )
    if missing and not skip:
        raise UserError(
            f"{table} and {pictures.where} do not go together: {missing[0]} is missing in the pictures; {_CURE}"
        )
    own = [index for index, name in enumerate(names) if split_indices[name] == number]
    lost = [name for name in missing if split_indices[name] == number]
    # An index beyond `own` is of a picture that is lost: reading it fails.
    return Encoded(
        pictures.where,
        [*(pictures.names[index] for index in own), *lost],
        lambda at: pictures.read(own[at]),
        _CURE,
    )


SOURCE = Source(
    "celeba",
    CelebA,
    load,
    found=found,
    about="CelebA: 162,770 aligned faces to train on, 19,867 and 19,962 held out, 178x218: --set 'data=CelebA()', or "
    "CelebA(64, fit=148) for 64x64 of the middle 148x148",
    needs=f"{NEEDS}. Decoded once, and kept in the cache (8 GB at 128). The presets and table-celeba take "
    "celeba/celeba_10k_89x109.npz instead: the first 10,000 faces, halved by examples/first_faces.py",
    test=lambda settings, root: replace(settings, split="test", images=None),
    validation=lambda settings: replace(settings, split="valid", images=None),
)
