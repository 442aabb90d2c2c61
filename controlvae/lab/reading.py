"""Bounds of what is read from outside: kind and size of files, decoded size, nesting of JSON.

Every reader of a user's file goes through this module, so that a damaged or hostile file ends in one
line instead of a traceback, a process that waits for ever, or a full memory. Functions raise
`ValueError` with a reason, or `OSError`; their callers add the name of the file.
"""

import csv
import json
import os
import re
import stat
import zipfile
import zlib
from io import BufferedReader
from pathlib import Path
from tokenize import TokenError
from typing import Any

MAX_TEXT_BYTES = 2 << 30  # of a text, after decompression
MAX_TABLE_BYTES = 256 << 20  # of a CSV file
MAX_TABLE_LETTERS = 1 << 27  # of a CSV file as an array: cells times letters of the longest
MAX_JSON_BYTES = 256 << 20
MAX_IMAGE_BYTES = 256 << 20  # of an encoded image
MAX_IMAGE_PIXELS = 40_000_000  # 6,300 x 6,300; decoding takes up to 12 bytes for each
MAX_ARRAY_BYTES = 1 << 40  # of an array in an archive, which is unpacked to the disk
MAX_LOADED_BYTES = 16 << 30  # of an array that is unpacked to memory
# Text shrinks by a factor of ten or so. A file that grows more than this is a bomb.
_MAX_RATIO, _FREE_BYTES = 100, 64 << 20
_MAX_NESTING = 100
_CHUNK_BYTES = 16 << 20
_MAX_DIGITS = 300  # of a whole number; more would not fit into a float

# Errors that reading a damaged file raises, over all formats. `NotImplementedError` and
# `RecursionError` are RuntimeErrors: unknown zip versions, encrypted members, nested headers.
READ_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    TokenError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    csv.Error,
    MemoryError,
)


def check_regular_file(path: Path) -> int:
    """Return the size of a file, or raise OSError if it is a pipe, a device or a socket.

    Reading a pipe would wait for a writer, and some devices have no end.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file but a pipe, a device or a socket")
    return status.st_size


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. A pipe that takes its place meanwhile does not block."""
    check_regular_file(path)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(size, limit)
        data = file.read(size + 1)
        while len(data) > size and (more := file.read(_CHUNK_BYTES)):  # it grows meanwhile
            data += more
            _check_size(len(data), limit)
    return data


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """Return the content of a UTF-8 file of at most `limit` bytes."""
    return read_bytes(path, limit).decode("utf-8")


def decompress_gzip(data: bytes, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a gzip file, all of its members, within the limits of a text."""
    limit = min(limit, max(_FREE_BYTES, _MAX_RATIO * len(data)))
    parts: list[bytes] = []
    size = 0
    while data:
        engine = zlib.decompressobj(wbits=31)
        part = engine.decompress(data, limit - size + 1)
        size += len(part)
        _check_size(size, limit, "unpacked")
        if not engine.eof:
            raise EOFError("the compressed data ends too early")
        parts.append(part)
        data = engine.unused_data.lstrip(b"\0")
    return b"".join(parts)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip file. A damaged directory raises ValueError."""
    check_regular_file(path)
    try:
        return zipfile.ZipFile(path)
    except OSError:
        raise
    except READ_ERRORS as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from None


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return a member of a zip archive.

    Args:
        archive: Open archive.
        name: Name of the member.
        limit: Largest number of bytes after decompression.

    Raises:
        ValueError: If the member is larger or damaged.
    """
    try:
        size = archive.getinfo(name).file_size
        _check_size(size, limit, "unpacked")
        with archive.open(name) as file:
            return file.read(size + 1)
    except (OSError, ValueError):
        raise
    except READ_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from None


def check_image_size(width: int, height: int) -> None:
    """Raise ValueError for an image whose pixels would not fit into a modest memory."""
    if width * height > MAX_IMAGE_PIXELS:
        raise ValueError(
            f"it has {width:,}x{height:,} pixels, more than {MAX_IMAGE_PIXELS / 1e6:.0f} million; "
            "make it smaller"
        )


def check_array(shape: tuple[Any, ...], item_bytes: int, limit: int = MAX_ARRAY_BYTES) -> int:
    """Return the number of elements of an array, or raise ValueError if its header is damaged.

    Args:
        shape: Shape that the header of a file names.
        item_bytes: Bytes of an element.
        limit: Largest number of bytes of the array.
    """
    count = 1
    for side in shape:
        if not isinstance(side, int) or side < 0:
            raise ValueError(f"its shape {shape!r:.80} is not a shape")
        count *= side
    _check_size(count * max(item_bytes, 1), limit, "unpacked")
    return count


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is no JSON, is nested more than a hundred deep, or holds a whole number of
            more than 300 digits or half of a surrogate pair, which cannot be written as UTF-8.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MAX_NESTING} deep") from None
    if text.count("[") + text.count("{") > _MAX_NESTING:
        _check_nesting(value)
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, such as \\ud800") from None
    return value


def check_nested_text(text: str, limit: int = _MAX_NESTING) -> None:
    """Raise ValueError if brackets or signs of a Python expression are nested too deeply."""
    depth = deepest = 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        deepest = max(deepest, depth)
    signs = max((len(run) for run in re.findall(r"(?:[-+~]\s*|not\s+)+", text)), default=0)
    if max(deepest, signs) > limit:
        raise ValueError(f"it is nested more than {limit} deep")


def shorten(value: Any, letters: int = 80) -> str:
    """Return a value as text for an error message, cut after some letters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits
        text = f"a value of type {type(value).__name__}"
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= letters else f"{text[:letters]}..."


def _check_size(size: int, limit: int, kind: str = "") -> None:
    if size > limit:
        raise ValueError(
            f"it has more than {limit / (1 << 20):,.0f} MB{' ' if kind else ''}{kind}, "
            "which is not read"
        )


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_NESTING} deep")


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"it holds a whole number of {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_parse_int)
