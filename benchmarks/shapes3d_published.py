"""The 50 published images of 3D Shapes that are at hand, cut out of two sheets of a 5x5 grid.

`3dshapes/grid_floor_red.png` and `3dshapes/grid_random.png` of the data folder come from the
repository of the data set. They show images of 64x64 pixels at 144 screen pixels without smoothing,
so every pixel is there two or three times and can be read back exactly. The outermost screen column
of an image is mixed with the white margin, and the top rows, which are sky, are cut off.
"""

from pathlib import Path

import numpy as np

GRIDS = ("grid_floor_red.png", "grid_random.png")
COUNT = 50
HELD_OUT = np.arange(COUNT) % 3 == 2  # 16 images that the fit never sees
SKY = (153, 226, 249)
_LEFT, _TOP = (8, 181, 355, 528, 701), (8, 181, 354, 527, 700)  # where the images begin
_MARGIN, _REACH = 2, 148  # screen pixels around the beginning of an image that are looked at
_OPACITY = 1 - 31 / 255  # of an image's outermost screen column: pure colours have 31 there

# Factors of the 50 images as class numbers. The published sheets come without them. Shapes were
# read off by eye, hues from median colours, orientations from the outline of the walls and scales
# by the best match (`fit_shapes3d.py` prints the last three again).
FACTORS = np.array(
    [
        [0, 4, 7, 4, 0, 6],
        [0, 9, 8, 0, 1, 2],
        [0, 2, 0, 2, 0, 14],
        [0, 1, 5, 2, 0, 0],
        [0, 0, 6, 4, 2, 9],
        [0, 9, 5, 1, 2, 2],
        [0, 1, 7, 5, 3, 4],
        [0, 3, 5, 7, 0, 8],
        [0, 9, 3, 4, 3, 0],
        [0, 1, 3, 6, 1, 12],
        [0, 7, 1, 0, 3, 1],
        [0, 4, 4, 2, 1, 0],
        [0, 1, 2, 1, 2, 6],
        [0, 8, 0, 1, 3, 13],
        [0, 1, 9, 1, 3, 10],
        [0, 6, 7, 4, 0, 11],
        [0, 0, 6, 6, 0, 4],
        [0, 1, 2, 2, 0, 10],
        [0, 1, 3, 3, 3, 6],
        [0, 6, 4, 0, 0, 14],
        [0, 2, 0, 2, 2, 8],
        [0, 1, 0, 7, 1, 8],
        [0, 4, 0, 0, 2, 13],
        [0, 4, 3, 6, 3, 2],
        [0, 9, 0, 1, 0, 4],
        [0, 1, 0, 6, 2, 4],
        [3, 8, 5, 5, 1, 0],
        [4, 7, 2, 5, 1, 5],
        [5, 2, 5, 4, 0, 8],
        [4, 5, 8, 1, 0, 5],
        [6, 2, 4, 4, 2, 0],
        [8, 3, 9, 5, 0, 10],
        [3, 2, 0, 7, 2, 7],
        [2, 8, 8, 0, 2, 4],
        [0, 0, 3, 5, 3, 6],
        [5, 9, 6, 1, 1, 6],
        [1, 3, 2, 6, 3, 0],
        [5, 5, 1, 0, 0, 10],
        [0, 1, 7, 3, 3, 8],
        [9, 2, 9, 7, 0, 11],
        [1, 0, 9, 5, 3, 10],
        [7, 2, 6, 1, 2, 2],
        [8, 7, 2, 1, 0, 14],
        [0, 6, 6, 0, 3, 7],
        [3, 7, 5, 6, 0, 2],
        [4, 7, 4, 7, 1, 3],
        [2, 8, 9, 7, 3, 3],
        [3, 3, 2, 1, 1, 1],
        [5, 5, 7, 2, 1, 6],
        [4, 4, 1, 1, 1, 6],
    ]
)


def read_published(folder: Path) -> np.ndarray:
    """Return the published images: uint8, (50, 64, 64, 3).

    Args:
        folder: The folder `3dshapes` of the data folder.
    """
    from PIL import Image

    sheets = [np.asarray(Image.open(folder / name).convert("RGB"), float) for name in GRIDS]
    columns = [_boundaries(sheets, left, axis=1) for left in _LEFT]
    rows = [_boundaries(sheets, top, axis=0) for top in _TOP]
    images = [_cut(sheet, row, column) for sheet in sheets for row in rows for column in columns]
    return np.stack(images)


def _boundaries(sheets: list[np.ndarray], start: int, axis: int) -> np.ndarray:
    """Return where a row or column of screen pixels differs from the one before, in any image."""
    first = start - _MARGIN
    change = sum(
        np.abs(np.diff(np.take(sheet, range(first, first + _REACH + _MARGIN), axis), axis=axis))
        .sum(axis=2)
        .sum(axis=1 - axis)
        for sheet in sheets
    )
    return np.flatnonzero(change) + 1 + first


def _cut(sheet: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Read one image from the first screen pixel of each of its pixels."""
    # The first boundaries are the margin and the mixed row below it. The last ones lie within the
    # bottom row of pixels.
    rows, columns = rows[2:-2], columns[:-1]
    if len(columns) != 64:
        raise ValueError(f"expected 64 columns of pixels, found {len(columns)}")
    image = np.empty((64, 64, 3))
    image[:] = SKY
    image[-len(rows) :] = sheet[np.ix_(rows, columns)]
    for edge in (0, -1):
        mixed = image[-len(rows) :, edge]
        image[-len(rows) :, edge] = (mixed - 255 * (1 - _OPACITY)) / _OPACITY
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)
