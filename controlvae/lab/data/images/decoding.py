"""From encoded pictures (JPEG, PNG, WebP, ...) to bytes, by Pillow, on every core."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".pbm",
)

_DEEP = ("I;16", "I;16L", "I;16B")  # grey in 16 bits: PNG, TIFF
_GREY = ("1", "L", "LA", *_DEEP)
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_ORIENTATION = 274  # the EXIF tag: 1 is upright, and from 5 on a picture lies on its side
_CHUNK_BYTES = 32 << 20
_TASK = 32  # pictures a thread takes at a time


class Encoded(NamedTuple):
    """Pictures that are files: where they are, their names in order, and how to read the one at a position."""

    where: Path
    names: Sequence[str]
    read: Callable[[int], bytes]
    cure: str = "mend it, or set data.unreadable=skip to leave such pictures out"  # where one cannot be read


class Unreadable(Exception):
    """A picture that cannot be taken, because Pillow cannot make sense of it or it is too small, and why."""

    def __init__(self, why: str, cure: str | None = None) -> None:
        super().__init__(why)
        self.cure = cure  # where it is not to mend the file


def inspect(data: bytes, thorough: bool = False) -> tuple[int, int, int]:
    """Height, width and channels (1 or 3) of a picture: of its header alone unless `thorough`."""
    picture = _opened(data)
    if thorough:
        _loaded(picture)
    width, height = picture.size
    if _orientation(picture) >= 5:
        width, height = height, width
    return height, width, 1 if picture.mode in _GREY else 3


def decode(data: bytes, channels: int, size: int | None = None, fit: Fit = "crop") -> np.ndarray:
    """A picture as (height, width, channels) uint8, the right way up, transparency laid on white, 16 bits as 8."""
    from PIL import Image, ImageOps

    picture = _loaded(_opened(data))
    if _orientation(picture) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in _DEEP:
        picture = Image.fromarray(
            np.rint(np.asarray(picture) / 257).astype(np.uint8)
        )  # 65,535 is 255 x 257
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return resized(picture.convert("L" if channels == 1 else "RGB"), size, fit)


def resized(picture: "Picture", size: int | None, fit: Fit = "crop") -> np.ndarray:
    """A grey or RGB picture as (height, width, channels), made size x size bilinearly, as torchvision's Resize does.

    Pillow's filter has half-pixel centres and widens when it shrinks a picture, so that no pixel is passed over.
    """
    from PIL import Image

    width, height = picture.size
    if size is not None and ((width, height) != (size, size) or isinstance(fit, int)):
        if fit != "stretch":
            side = min(width, height) if fit == "crop" else fit
            if side > min(width, height):
                raise too_small(fit, height, width)
            left, top = (width - side) // 2, (height - side) // 2
            picture = picture.crop((left, top, left + side, top + side))
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def decode_all(
    pictures: Encoded,
    indices: np.ndarray,
    shape: tuple[int, int, int],
    size: int | None,
    fit: Fit = "crop",
) -> Iterator[np.ndarray]:
    """The pictures at these indices in chunks of (n, height, width, channels), or an error naming the one at fault."""

    def one(index: int) -> np.ndarray:
        try:
            pixels = decode(_read(pictures, index), shape[2], size, fit)
        except Unreadable as error:
            raise unreadable(pictures, index, error) from None
        if pixels.shape != shape:
            raise UserError(
                f"{pictures.names[index]} in {pictures.where} has changed while it was read; try again"
            )
        return pixels

    return in_chunks(one, indices, shape)


def in_chunks(
    one: Callable[[int], np.ndarray], indices: np.ndarray, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """`one(index)` for all indices, in threads (Pillow releases the interpreter's lock), a bounded chunk at a time.

    The next chunk is being made while the last one is written.
    """
    length = max(_TASK, _CHUNK_BYTES // int(np.prod(shape)))

    def fill(chunk: np.ndarray, part: np.ndarray, first: int) -> None:
        for position in range(first, min(first + _TASK, len(part))):
            chunk[position] = one(int(part[position]))

    with _threads() as threads:
        ahead: list[tuple[np.ndarray, list[Future[None]]]] = []
        for start in range(0, len(indices), length):
            part = indices[start : start + length]
            chunk = np.empty((len(part), *shape), np.uint8)
            ahead.append(
                (
                    chunk,
                    [threads.submit(fill, chunk, part, at) for at in range(0, len(part), _TASK)],
                )
            )
            if len(ahead) > 1:
                yield _finished(*ahead.pop(0))
        for last in ahead:
            yield _finished(*last)


def _finished(chunk: np.ndarray, tasks: list[Future[None]]) -> np.ndarray:
    for task in tasks:
        task.result()
    return chunk


def inspect_all(pictures: Encoded, thorough: bool) -> tuple[np.ndarray, dict[int, Unreadable]]:
    """Height, width and channels of every picture, int32 (count, 3), zeros where unreadable; and why those are."""
    table, faults = np.zeros((len(pictures.names), 3), np.int32), {}

    def look(first: int) -> None:
        for index in range(first, min(first + _TASK, len(table))):
            try:
                table[index] = inspect(_read(pictures, index), thorough)
            except Unreadable as error:
                faults[index] = error

    with _threads() as threads:
        for _ in threads.map(look, range(0, len(table), _TASK)):
            pass
    return table, faults


def too_small(fit: Fit, height: int, width: int) -> Unreadable:
    """Of a picture that has less than the pixels of its middle that are asked for."""
    cure = "set a smaller data.fit, or data.unreadable=skip to leave such pictures out"
    return Unreadable(f"it is {width}x{height}, too small for fit={fit}", cure)


def unreadable(pictures: Encoded, index: int, error: Unreadable) -> UserError:
    """Which picture cannot be taken, why, and what to do."""
    name = f"{pictures.names[index]} in {pictures.where}"
    return UserError(
        f"{name} cannot be {'taken' if error.cure else 'read'}: {error}; {error.cure or pictures.cure}"
    )


def _threads() -> ThreadPoolExecutor:
    from PIL import Image

    Image.init()  # its decoders register themselves, and not safely from two threads
    return ThreadPoolExecutor(os.cpu_count() or 1)


def _read(pictures: Encoded, index: int) -> bytes:
    try:
        return pictures.read(index)
    except Exception as error:  # of the file system, of zlib, of zipfile
        raise Unreadable(_line(error)) from None


def _opened(data: bytes) -> "Picture":
    from PIL import Image

    try:
        picture = Image.open(BytesIO(data))
    except Exception as error:  # the decoders raise whatever their format makes them stumble over
        raise Unreadable(
            "not a picture" if isinstance(error, Image.UnidentifiedImageError) else _line(error)
        ) from None
    if picture.mode not in _GREY + _COLOUR:
        raise Unreadable(
            f"its values are of mode {picture.mode}, not 8 bits a channel or 16 of grey"
        )
    return picture


def _loaded(picture: "Picture") -> "Picture":
    try:
        picture.load()
    except Exception as error:
        raise Unreadable(_line(error)) from None
    return picture


def _orientation(picture: "Picture") -> int:
    """How the camera was held; a damaged EXIF block does not say."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
