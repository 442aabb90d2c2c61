"""CIFAR-10: 60,000 colour photographs of 32x32, made larger bilinearly as the paper's image experiments take them.

Krizhevsky, *Learning multiple layers of features from tiny images*, 2009. Read from archives of lossless WebP files,
from the published Python version, whose pickles are read without running anything, or from a copy of `datasets`. They
hold the same pictures in different orders. Classes are left out: they are labels of content, not factors that a picture
was made from.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10
from controlvae.lab.data import huggingface as hub
from controlvae.lab.data.cache import cached_array, fingerprint
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.images import numpy_files as arrays
from controlvae.lab.data.images.decoding import Encoded, in_chunks, resized
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.source import Source
from controlvae.lab.data.splits import subset

COUNTS = {"train": 50_000, "test": 10_000}
ARCHIVES = {
    "train": ("cifar10_train_part1.npz", "cifar10_train_part2.npz"),
    "test": ("cifar10_test.npz",),
}
BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
FOLDER, TAR = "cifar-10-batches-py", "cifar-10-python.tar.gz"
NEEDS = (
    f"{', '.join(ARCHIVES['train'] + ARCHIVES['test'])} (lossless WebP, 106 MB), or the folder {FOLDER}, or {TAR} "
    f"(170 MB, www.cs.toronto.edu/~kriz/cifar.html); here or in cifar10/. Or cifar10/ as {hub.NEEDS}"
)
_SIDE = 32


class Files(NamedTuple):
    """Where a split was found."""

    kind: str  # webp, folder, tar or copy
    paths: tuple[Path, ...]


def load(settings: CIFAR10, root: Path | None = None) -> ByteImages:
    """The pictures a run asks for."""
    files = find(settings.split, root)
    if files is None:
        places = ", ".join(map(str, data_roots(root)))
        raise UserError(f"no CIFAR-10 {settings.split} set in {places}; it needs {NEEDS}")
    chosen, size = subset(COUNTS[settings.split], settings.images), settings.size
    shape = (len(chosen), size, size, 3)
    rows = cached_array(
        f"cifar10-{settings.split}-{size}",
        settings,
        fingerprint(files.paths),
        shape,
        np.uint8,
        lambda: _chunks(files, settings.split, chosen, size),
    )
    source = f"CIFAR-10 from {files.paths[0].parent if files.kind == 'webp' else files.paths[0]}"
    source += f", resized from {_SIDE}x{_SIDE}" if size != _SIDE else ""
    split = "the training set" if settings.split == "train" else "the test set"
    return ByteImages(torch.from_numpy(rows.reshape(len(rows), -1)), (3, size, size), source, split)


def find(split: str, root: Path | None = None) -> Files | None:
    """The files of a split in the first data folder that has them all. Half a training set is refused."""
    half: list[Path] = []
    for folder in [place for given in data_roots(root) for place in (given, given / "cifar10")]:
        archives = tuple(folder / name for name in ARCHIVES[split])
        batches = tuple(folder / FOLDER / name for name in BATCHES[split])
        missing = [path for path in archives if not path.is_file()]
        if not missing:
            return Files("webp", archives)
        if all(path.is_file() for path in batches):
            return Files("folder", batches)
        if (folder / TAR).is_file():
            return Files("tar", (folder / TAR,))
        if folder.name == "cifar10" and hub.is_copy(folder):
            return Files("copy", (folder, *hub.files(folder)))
        if len(missing) < len(archives):
            half = missing
    if half:
        raise UserError(
            f"{half[0]} is missing; the other half of the {split} set is there, and both are needed"
        )
    return None


def found(root: Path | None = None) -> str:
    """What of it is there, for people."""
    words = []
    for split in COUNTS:
        try:
            files = find(split, root)
        except UserError as error:
            words.append(str(error))
        else:
            words.append(f"{split}: {', '.join(map(str, files.paths)) if files else 'no file'}")
    return "; ".join(words)


def _chunks(files: Files, split: str, chosen: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The chosen pictures, part by part: (n, size, size, 3)."""
    from PIL import Image

    start = 0
    for part in _parts(files, split):
        count = len(part.names) if isinstance(part, Encoded) else len(part)

        def one(index: int, part: Encoded | np.ndarray = part) -> np.ndarray:
            picture = (
                _decode(part, index) if isinstance(part, Encoded) else Image.fromarray(part[index])
            )
            return resized(picture, size)

        here = chosen[(chosen >= start) & (chosen < start + count)] - start
        yield from in_chunks(one, here, (size, size, 3))
        start += count
    if start != COUNTS[split]:
        raise UserError(
            f"{files.paths[0].parent} holds {start:,} {split} pictures instead of {COUNTS[split]:,}"
        )


def _parts(files: Files, split: str) -> Iterator[Encoded] | Iterator[np.ndarray]:
    match files.kind:
        case "webp":
            return _webp_parts(files)
        case "copy":
            return iter([hub.open_copy(files.paths[0]).split(split).pictures()])
    return _pickled_parts(files, split)


def _webp_parts(files: Files) -> Iterator[Encoded]:
    for path in files.paths:
        try:
            with np.load(path) as file:
                part = arrays.end_to_end(file["webp"], file["offsets"], path)
        except arrays.FAULTS as error:
            raise UserError(f"{path} cannot be read as CIFAR-10: {error}") from None
        yield part


def _decode(part: Encoded, index: int) -> Any:
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(part.read(index)), formats=("WEBP", "PNG"))
        if picture.size != (_SIDE, _SIDE):
            raise ValueError(f"it is {picture.size}")
        return picture.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they stumble over
        raise UserError(f"picture {index} in {part.where} cannot be read: {error}") from None


def _pickled_parts(files: Files, split: str) -> Iterator[np.ndarray]:
    for name, data in _batches(files, split):
        try:
            part = read_batch(data)
        except Exception as error:  # a damaged pickle raises anything
            raise UserError(
                f"{name} in {files.paths[0].parent} cannot be read as CIFAR-10: {error}"
            ) from None
        yield part


def _batches(files: Files, split: str) -> Iterator[tuple[str, bytes]]:
    """The files of the Python version, by name."""
    try:
        if files.kind == "folder":
            yield from ((path.name, path.read_bytes()) for path in files.paths)
            return
        with tarfile.open(files.paths[0]) as archive:
            data = {}
            for member in (
                archive
            ):  # in its own order: going back in a compressed file means reading it again
                file = (
                    archive.extractfile(member)
                    if Path(member.name).name in BATCHES[split]
                    else None
                )
                if file is not None:
                    data[Path(member.name).name] = file.read()
        yield from ((name, data[name]) for name in BATCHES[split])
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"{files.paths[0]} cannot be read as CIFAR-10: {error}") from None


def read_batch(data: bytes) -> np.ndarray:
    """The pictures of one file of the Python version, as published or pickled again: (n, 32, 32, 3).

    A pickle is a program. This one may only name what makes an array and its bytes, and even that is not called: what
    it would have been given is written down, and the pixels are taken from there.
    """
    content = _Reader(io.BytesIO(data), encoding="bytes").load()
    named = (
        {_bytes(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    )
    array = named.get(b"data", named.get("data"))
    match array:
        case _Noted(state=(_, shape, _Noted() as dtype, fortran, pixels)):
            pass
        case _Noted(given=(pixels, _Noted() as dtype, shape, order)):  # protocol 5
            fortran = order == "F"
        case _:
            raise ValueError("it holds no array named data")
    if dtype.given[0] not in (b"u1", "u1") or len(shape) != 2 or shape[1] != 3 * _SIDE * _SIDE:
        raise ValueError(
            f"its pictures are {dtype.given[0]} of shape {shape}, expected u1 of (n, {3 * _SIDE * _SIDE})"
        )
    rows = np.frombuffer(_bytes(pixels), np.uint8).reshape(shape, order="F" if fortran else "C")
    return rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


class _Noted:
    """Stands for an object of a pickle: what it was to be made from, and its state."""

    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _bytes(value: Any) -> Any:
    """Bytes that protocol 2 of Python 3 writes as text to be encoded; all else as it is."""
    match value:
        case _Noted(given=(str() as text, _)):
            return text.encode("latin1")
    return value


class _Reader(Unpickler):
    def find_class(self, module: str, name: str) -> type[_Noted]:
        if (module.replace("numpy._core", "numpy.core"), name) not in _HARMLESS:
            raise UnpicklingError(f"it asks for {module}.{name}, which no file of CIFAR-10 does")
        return _Noted


_HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


SOURCE = Source(
    "cifar10",
    CIFAR10,
    load,
    found=found,
    about="CIFAR-10: 50,000 colour photographs to train on and 10,000 to test on, 32x32, made 64x64 or 128x128",
    needs=f"{NEEDS}. Decoded once, and kept in $CONTROLVAE_CACHE, else ~/.cache/controlvae (2.5 GB at 128)",
    test=lambda settings, root: replace(settings, split="test", images=None),
)
