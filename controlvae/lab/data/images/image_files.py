"""Which image files can be taken: how large they are, and what becomes of those that are damaged or too small."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.data import Fit
from controlvae.lab.data.cache import cached_array, write_name_list
from controlvae.lab.data.images.decoding import Encoded, inspect_all, too_small, unreadable

_MANY = 1_000  # pictures whose sizes are worth remembering
_NAMED = 5  # of those left out


class ImageFileCheck(NamedTuple):
    """What there is of some files."""

    sizes: (
        np.ndarray
    )  # height, width and channels of every picture, (count, 3); zeros where it cannot be read
    indices: np.ndarray  # of those that can be taken
    left_out: str  # the others, for people, to be said after what the pictures are


def check_image_files(
    pictures: Encoded, fit: Fit, skip: bool, stamp: str, part: str = ""
) -> ImageFileCheck:
    """Looks at every file. The first that cannot be taken is refused by name unless such files are to be skipped.

    `part` tells files apart that lie in one place and are not looked at together.
    """
    sizes = _sizes(pictures, skip, stamp, part)
    readable = sizes[:, 0] > 0
    small = (
        readable & (sizes[:, :2].min(axis=1) < fit)
        if isinstance(fit, int)
        else np.zeros_like(readable)
    )
    if small.any() and not skip:
        first = int(small.argmax())
        raise unreadable(pictures, first, too_small(fit, *sizes[first, :2]))
    taken = readable & ~small
    if not taken.any():
        raise UserError(
            f"none of the {len(sizes):,} pictures in {pictures.where} can be taken; data.unreadable=refuse says why"
        )
    left_out = ""
    if not taken.all():
        why = [
            *(["unreadable"] if not readable.all() else []),
            *([f"too small for fit={fit}"] if small.any() else []),
        ]
        names = [pictures.names[int(index)] for index in np.flatnonzero(~taken)]
        some = _named(names, (pictures.where.absolute(), fit, part))
        left_out = f"; {len(names):,} of {len(sizes):,} left out as {' or '.join(why)} ({some})"
    return ImageFileCheck(sizes, np.flatnonzero(taken), left_out)


def _sizes(pictures: Encoded, skip: bool, stamp: str, part: str) -> np.ndarray:
    def look() -> Iterator[np.ndarray]:
        table, faults = inspect_all(pictures, thorough=skip)
        if faults and not skip:
            raise unreadable(pictures, min(faults), faults[min(faults)])
        yield table

    shape, key = (len(pictures.names), 3), (pictures.where.absolute(), skip, part)
    return cached_array("sizes", key, stamp, shape, np.int32, look, worth=_MANY * 12)


def _named(names: Sequence[str], about: object) -> str:
    """The first few; of more, how many there are and the file that lists them all."""
    some, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
    if more <= 0:
        return some
    file = write_name_list("left-out", about, names)
    return f"{some} and {more:,} more" + (f"; all of them are in {file}" if file else "")
