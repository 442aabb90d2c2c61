"""Disk cache of decoded images and unpacked arrays.

Arrays are written once and then memory-mapped. They are written again when their source changes.
"""

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

_VERSION = 1  # version of what readers produce; increase it to ignore older files
_MIN_CACHED_BYTES = 64 << 20  # smaller arrays are decoded again just as quickly
_UNFINISHED_PREFIX = ".controlvae-"  # starts the names of files that are not complete yet

Chunks = Callable[[], Iterator[np.ndarray]]


def cache_folder() -> Path:
    """Return `$CONTROLVAE_CACHE`, or the platform's cache folder."""
    custom = os.environ.get("CONTROLVAE_CACHE")
    if custom:
        return Path(custom)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "controlvae"


def fingerprint_files(files: Iterable[Path]) -> str:
    """Return a digest of the names, sizes and times of files.

    It includes the time of the last status change, which copying and `touch` cannot set back.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError:  # a broken link; reading it later gives a proper error
            stat = file.lstat()
        line = f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def cached_array(
    name: str,
    settings: Any,
    source: str,
    shape: tuple[int, ...],
    dtype: Any,
    chunks: Chunks,
    min_bytes: int | None = None,
) -> np.ndarray:
    """Return the array that `chunks()` yields piece by piece, from the cache if possible.

    If the cache cannot be written, the array is kept in memory.

    Args:
        name: The start of the cache file's name.
        settings: What was requested. An array with the same settings and another source is
            replaced.
        source: The fingerprint of the files that the array is made from.
        shape: The shape of the array.
        dtype: The type of the array.
        chunks: A function that yields the array in pieces. It must not raise OSError.
        min_bytes: The size below which an array is not cached, by default 64 MiB.
    """
    size = np.prod(shape, dtype=np.int64) * np.dtype(dtype).itemsize
    if size < (_MIN_CACHED_BYTES if min_bytes is None else min_bytes):
        return _gather(shape, dtype, chunks())
    import PIL  # its version decides the pixels

    key = _digest(_VERSION, PIL.__version__, settings, np.dtype(dtype).str)
    path = cache_folder() / f"{name}-{key}-{_digest(source, shape)}.npy"
    cached = _open(path, shape, dtype)
    if cached is not None:
        return cached
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, shape, dtype, chunks())
    except OSError:  # a read-only or full disk
        return _gather(shape, dtype, chunks())
    for old in path.parent.glob(f"{name}-{key}-*.npy"):
        if old != path:
            with contextlib.suppress(OSError):
                old.unlink()
    written = _open(path, shape, dtype)
    return _gather(shape, dtype, chunks()) if written is None else written


def write_name_list(name: str, about: Any, lines: Sequence[str]) -> Path | None:
    """Write lines to a text file in the cache folder.

    Args:
        name: The start of the file's name.
        about: What the list is about; each subject has its own file.
        lines: The lines to write.

    Returns:
        The path of the file, or None if it cannot be written.
    """
    path = cache_folder() / f"{name}-{_digest(about)}.txt"
    text = "".join(f"{line}\n" for line in lines)
    try:
        write_text(path, text.encode(errors="backslashreplace").decode())
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
    # Copy-on-write: torch treats the array as writable, and the file stays as it is.
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, ValueError):
        return None
    return array if array.shape == shape and array.dtype == dtype else None


def _write(path: Path, shape: tuple[int, ...], dtype: Any, chunks: Iterator[np.ndarray]) -> None:
    """Write an array to a temporary file, then rename it.

    Plain writes are used because a full disk raises an error there, but crashes a memory map.
    """
    clear_torn(path.parent, f"{_UNFINISHED_PREFIX}*")
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            descr = npy.dtype_to_descr(np.dtype(dtype))
            header = {"descr": descr, "fortran_order": False, "shape": shape}
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
