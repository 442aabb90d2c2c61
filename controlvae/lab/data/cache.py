"""Decoded pictures and unpacked arrays on disk: made once, then memory-mapped, made again when their source changes."""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from controlvae.errors import UserError
from controlvae.lab.io import clear_torn, write_text

_VERSION = 1  # of what the loaders make of a source: a higher number leaves older files unused
_WORTH = 64 << 20  # bytes; below this, decoding again is as quick as looking
_UNFINISHED = ".controlvae-"  # how the name of a file begins that is not whole yet

Chunks = Callable[[], Iterator[np.ndarray]]


def cache_folder() -> Path:
    """`$CONTROLVAE_CACHE`, else the platform's place for caches."""
    given = os.environ.get("CONTROLVAE_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "controlvae"


def fingerprint(files: Iterable[Path]) -> str:
    """A digest of names, sizes and times. The time of change is one that copying or `touch` cannot set back."""
    digest = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError:  # a link to nowhere: whoever reads it says so
            stat = file.lstat()
        digest.update(
            f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n".encode(
                errors="surrogateescape"
            )
        )
    return digest.hexdigest()


def cached_array(
    name: str,
    settings: Any,
    source: str,
    shape: tuple[int, ...],
    dtype: Any,
    chunks: Chunks,
    worth: int | None = None,
) -> np.ndarray:
    """The array that `chunks()` yields piece by piece, from the cache where it is there.

    `settings` say what was asked for, `source` is the fingerprint of what it is made from: an array of the same
    settings and another source is replaced. Arrays of less than `worth` bytes are not kept. A cache that cannot
    be written costs time, and the array then lives in memory. `chunks` raises no OSError of its own.
    """
    if np.prod(shape, dtype=np.int64) * np.dtype(dtype).itemsize < (
        _WORTH if worth is None else worth
    ):
        return _gather(shape, dtype, chunks())
    import PIL  # which makes the pixels

    wanted = _digest(_VERSION, PIL.__version__, settings, np.dtype(dtype).str)
    path = cache_folder() / f"{name}-{wanted}-{_digest(source, shape)}.npy"
    found = _open(path, shape, dtype)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, shape, dtype, chunks())
    except OSError:  # a read-only or a full disk
        return _gather(shape, dtype, chunks())
    for old in path.parent.glob(f"{name}-{wanted}-*.npy"):
        if old != path:
            with contextlib.suppress(OSError):
                old.unlink()
    written = _open(path, shape, dtype)
    return _gather(shape, dtype, chunks()) if written is None else written


def write_name_list(name: str, about: Any, lines: Sequence[str]) -> Path | None:
    """A text file of these lines beside the arrays, for people, one for each thing it is about.

    None where it cannot be written.
    """
    path = cache_folder() / f"{name}-{_digest(about)}.txt"
    try:
        write_text(
            path, "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace").decode()
        )
    except UserError:
        return None
    return path


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _gather(shape: tuple[int, ...], dtype: Any, chunks: Iterator[np.ndarray]) -> np.ndarray:
    array, start = np.empty(shape, dtype), 0
    for chunk in chunks:
        array[start : start + len(chunk)] = chunk
        start += len(chunk)
    return array


def _open(path: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
    """The file mapped copy-on-write, which torch takes for writable while the file stays as it is."""
    try:
        found = np.load(path, mmap_mode="c")
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == dtype else None


def _write(path: Path, shape: tuple[int, ...], dtype: Any, chunks: Iterator[np.ndarray]) -> None:
    """Under a temporary name until it is whole. Plain writes: a full disk is an error there, and a crash in a map."""
    clear_torn(path.parent, f"{_UNFINISHED}*")
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            header = {
                "descr": npy.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            npy.write_array_header_1_0(file, header)
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk, dtype).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
