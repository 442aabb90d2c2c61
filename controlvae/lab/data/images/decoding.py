"""Decoding of image files (JPEG, PNG, WebP, ...) to bytes with Pillow, on all cores."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit
from controlvae.lab.reading import MAX_IMAGE_BYTES, check_image_size

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

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

_GREY_16_BIT_MODES = ("I;16", "I;16L", "I;16B")  # PNG, TIFF
_GREY_MODES = ("1", "L", "LA", *_GREY_16_BIT_MODES)
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_ORIENTATION_TAG = 274  # of EXIF: 1 is upright, 5 and more are turned by 90 degrees
_CHUNK_BYTES = 32 << 20
_LARGE_PIXELS = 4_000_000
_large_images = threading.Lock()
_IMAGES_PER_TASK = 32


class EncodedImages(NamedTuple):
    """Image files: their location, their names in order, and a function that reads one."""

    path: Path
    names: Sequence[str]
    read: Callable[[int], bytes]
    remedy: str = "repair it, or set data.unreadable=skip to skip such images"


class UnreadableImage(Exception):
    """An image that Pillow cannot decode or that is too small."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy  # None: the remedy of `EncodedImages` applies


def image_shape(data: bytes, decode: bool = False) -> tuple[int, int, int]:
    """Return height, width and channels (1 or 3) of an encoded image.

    Args:
        data: The contents of the file.
        decode: Decode the whole image to find corrupt data, instead of reading the header alone.

    Raises:
        UnreadableImage: Pillow cannot read it.
    """
    image = _open(data)
    if decode:
        is_large = image.size[0] * image.size[1] > _LARGE_PIXELS
        with _large_images if is_large else contextlib.nullcontext():
            _load_pixels(image)
    width, height = image.size
    if _orientation(image) >= 5:
        width, height = height, width
    return height, width, 1 if image.mode in _GREY_MODES else 3


def decode_image(
    data: bytes, channels: int, size: int | None = None, fit: Fit = "crop"
) -> np.ndarray:
    """Decode an image to uint8, (height, width, channels).

    The image is turned upright, transparency is laid on white, and 16 bits are reduced to 8.

    Args:
        data: The contents of the file.
        channels: 1 for grey or 3 for colour.
        size: Height and width of the result. None keeps the size.
        fit: How the image becomes square; see `resize_image`.

    Raises:
        UnreadableImage: Pillow cannot read it, or it is too small for `fit`.
    """
    image = _open(data)
    # One large image at a time: each takes hundreds of megabytes while it is decoded.
    is_large = image.size[0] * image.size[1] > _LARGE_PIXELS
    with _large_images if is_large else contextlib.nullcontext():
        return _decode(image, channels, size, fit)


def _decode(image: "PILImage", channels: int, size: int | None, fit: Fit) -> np.ndarray:
    from PIL import Image, ImageOps

    image = _load_pixels(image)
    if _orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in _GREY_16_BIT_MODES:
        # 65,535 is 255 x 257, and half of an odd number is never met.
        scaled = (np.asarray(image).astype(np.uint32) + 128) // 257
        image = Image.fromarray(scaled.astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return resize_image(image.convert("L" if channels == 1 else "RGB"), size, fit)


def resize_image(image: "PILImage", size: int | None, fit: Fit = "crop") -> np.ndarray:
    """Resize a grey or RGB image bilinearly, as torchvision's Resize does.

    Pillow's filter has half-pixel centres and widens when it shrinks an image, so that every pixel
    counts.

    Args:
        image: The image.
        size: Height and width of the result. None keeps the size.
        fit: "crop" takes the largest central square, "stretch" the whole image, a number the
            central square of that many pixels.

    Returns:
        uint8, (height, width, channels).
    """
    from PIL import Image

    width, height = image.size
    if size is not None and ((width, height) != (size, size) or isinstance(fit, int)):
        if fit != "stretch":
            side = min(width, height) if fit == "crop" else fit
            if side > min(width, height):
                raise too_small_error(fit, height, width)
            left, top = (width - side) // 2, (height - side) // 2
            image = image.crop((left, top, left + side, top + side))
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def decode_image_files(
    images: EncodedImages,
    indices: np.ndarray,
    shape: tuple[int, int, int],
    size: int | None,
    fit: Fit = "crop",
) -> Iterator[np.ndarray]:
    """Yield the images at these indices in chunks of (n, height, width, channels).

    Args:
        images: The files.
        indices: Positions of the images to decode.
        shape: The expected shape of each image.
        size: Height and width to resize to. None keeps the size.
        fit: How images become square.

    Raises:
        UserError: An image cannot be read. The message names it.
    """

    def decode(index: int) -> np.ndarray:
        try:
            pixels = decode_image(_read(images, index), shape[2], size, fit)
        except UnreadableImage as error:
            raise unreadable_error(images, index, error) from None
        if pixels.shape != shape:
            name = f"{images.names[index]} in {images.path}"
            raise UserError(f"{name} has changed while it was read; try again")
        return pixels

    return parallel_chunks(decode, indices, shape)


def parallel_chunks(
    compute: Callable[[int], np.ndarray], indices: np.ndarray, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yield `compute(index)` for all indices in chunks of bounded size, computed by threads.

    Pillow releases the interpreter lock. The next chunk is computed while one is consumed.

    Args:
        compute: Returns a uint8 array for one index.
        indices: The indices, in the order of the result.
        shape: The shape of one array.
    """
    length = max(_IMAGES_PER_TASK, _CHUNK_BYTES // int(np.prod(shape)))

    def fill(chunk: np.ndarray, part: np.ndarray, first: int) -> None:
        for position in range(first, min(first + _IMAGES_PER_TASK, len(part))):
            chunk[position] = compute(int(part[position]))

    with _thread_pool() as threads:
        pending: list[tuple[np.ndarray, list[Future[None]]]] = []
        for start in range(0, len(indices), length):
            part = indices[start : start + length]
            chunk = np.empty((len(part), *shape), np.uint8)
            firsts = range(0, len(part), _IMAGES_PER_TASK)
            pending.append((chunk, [threads.submit(fill, chunk, part, at) for at in firsts]))
            if len(pending) > 1:
                yield _wait_for_chunk(*pending.pop(0))
        for last in pending:
            yield _wait_for_chunk(*last)


def _wait_for_chunk(chunk: np.ndarray, tasks: list[Future[None]]) -> np.ndarray:
    for task in tasks:
        task.result()
    return chunk


def image_shapes(
    images: EncodedImages, decode: bool
) -> tuple[np.ndarray, dict[int, UnreadableImage]]:
    """Return height, width and channels of every image, and the errors of unreadable ones.

    Args:
        images: The files.
        decode: Decode every image to find corrupt data, instead of reading headers alone.

    Returns:
        An int32 table, (count, 3), with zeros for unreadable images; and their errors by index.
    """
    table, errors = np.zeros((len(images.names), 3), np.int32), {}

    def inspect(first: int) -> None:
        for index in range(first, min(first + _IMAGES_PER_TASK, len(table))):
            try:
                table[index] = image_shape(_read(images, index), decode)
            except UnreadableImage as error:
                errors[index] = error

    with _thread_pool() as threads:
        for _ in threads.map(inspect, range(0, len(table), _IMAGES_PER_TASK)):
            pass
    return table, errors


def too_small_error(fit: Fit, height: int, width: int) -> UnreadableImage:
    """Return the error for an image with fewer pixels than `fit` crops.

    Args:
        fit: The side of the central crop, in pixels.
        height: The height of the image.
        width: The width of the image.
    """
    remedy = "set a smaller data.fit, or data.unreadable=skip to skip such images"
    return UnreadableImage(f"it is {width}x{height}, too small for fit={fit}", remedy)


def unreadable_error(images: EncodedImages, index: int, error: UnreadableImage) -> UserError:
    """Return an error that names the unreadable image, the reason and the remedy.

    Args:
        images: The files.
        index: The position of the unreadable one.
        error: The reason.
    """
    name, problem = f"{images.names[index]} in {images.path}", "used" if error.remedy else "read"
    return UserError(f"{name} cannot be {problem}: {error}; {error.remedy or images.remedy}")


def _thread_pool() -> ThreadPoolExecutor:
    from PIL import Image

    Image.init()  # decoders register themselves, which is not thread-safe
    return ThreadPoolExecutor(os.cpu_count() or 1)


def _read(images: EncodedImages, index: int) -> bytes:
    try:
        return images.read(index)
    except Exception as error:  # from the file system, zlib or zipfile
        raise UnreadableImage(_first_line(error)) from None


def _open(data: bytes) -> "PILImage":
    from PIL import Image

    try:
        if len(data) > MAX_IMAGE_BYTES:
            raise ValueError(f"it has more than {MAX_IMAGE_BYTES >> 20} MB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about a bomb, which is checked here
            image = Image.open(BytesIO(data))
        check_image_size(*image.size)
    except Image.UnidentifiedImageError:
        raise UnreadableImage("not an image") from None
    except Exception as error:  # decoders raise errors of all kinds
        raise UnreadableImage(_first_line(error)) from None
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        raise UnreadableImage(
            f"its values have mode {image.mode}, not 8 bits per channel or 16 bits of grey"
        )
    return image


def _load_pixels(image: "PILImage") -> "PILImage":
    try:
        image.load()
    except Exception as error:
        raise UnreadableImage(_first_line(error)) from None
    return image


def _orientation(image: "PILImage") -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # a corrupt EXIF block
        return 1


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
