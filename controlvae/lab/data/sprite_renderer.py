"""Renderer of dSprites ("2D Shapes"): draws every image from its five factors with NumPy alone.

The published images were drawn with LÖVE, a 2D game engine (google-deepmind/dsprites-dataset,
issue #2), without anti-aliasing, and show the marks of a graphics card. An image is therefore a
polygon, placed in single precision, whose vertices are rounded to 1/256 pixel, and whose pixels are
lit if their centres lie inside. The rounding matters: without it one image in 28 has a wrong pixel.
With it, all of 10,000 published images are reproduced exactly. The order of the card's float32
operations is a guess, chosen among those that also give the published number of lit pixels. The
other candidates differ from it in at most 82 pixels of the whole set.
"""

import numpy as np

FACTOR_NAMES = ("shape", "scale", "orientation", "x", "y")
# Shape is categorical: the paper's MIG omits it (section 4.3), its RMIG uses all five factors.
UNORDERED = ("shape",)
FACTOR_SIZES = (3, 6, 40, 32, 32)
IMAGE_COUNT = 737_280

_SIDE = 64  # pixels; a row of an image is then one 64-bit word
_SUBPIXEL = 256  # vertices lie on a grid of 1/256 pixel
_CENTRE = _SUBPIXEL // 2  # centre of a pixel, in these units
# _FROM_COLUMN[i]: a row that is lit from column i to the right edge, with its bytes in the order of
# np.packbits on any machine.
_FROM_COLUMN = np.array([2 ** (_SIDE - i) - 1 for i in range(_SIDE + 1)], dtype=">u8").view(
    np.uint64
)


def factor_classes(indices: np.ndarray | None = None) -> np.ndarray:
    """Return the factors of images as class numbers: int64, (n, 5), in the order of `FACTOR_NAMES`.

    Args:
        indices: Numbers of the images as in the official file, where shape varies slowest and y
            fastest. None selects all images.
    """
    if indices is None:
        return np.indices(FACTOR_SIZES, dtype=np.int64).reshape(len(FACTOR_SIZES), IMAGE_COUNT).T
    indices = np.asarray(indices)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"indices must be a vector of integers, got {indices.dtype} of shape {indices.shape}"
        )
    if indices.size and not 0 <= indices.min() <= indices.max() < IMAGE_COUNT:
        raise ValueError(
            f"indices must lie in 0..{IMAGE_COUNT - 1}, got {indices.min()}..{indices.max()}"
        )
    return np.stack(np.unravel_index(indices, FACTOR_SIZES), axis=1).astype(np.int64)


def sprite_factor_values(classes: np.ndarray) -> np.ndarray:
    """Return the values of factors: float64, (n, 5).

    They are the official file's `latents_values` without its constant colour. Shape is 1, 2 or 3
    (square, ellipse, heart), scale 0.5 to 1, orientation 0 to 2π, x and y 0 to 1.
    """
    classes = np.asarray(classes)
    return np.stack(
        [levels[column] for levels, column in zip(_levels(), classes.T, strict=True)], axis=1
    )


def render(indices: np.ndarray) -> np.ndarray:
    """Draw the images with these numbers, in this order: uint8, (n, 64, 64), zeros and ones."""
    classes = factor_classes(indices)
    _, scale, orientation, x, y = sprite_factor_values(classes).T
    rows = np.zeros((len(classes), _SIDE), dtype=np.uint64)
    for shape, outline in enumerate(_outlines()):
        of_shape = np.flatnonzero(classes[:, 0] == shape)
        across, down = _turn(outline, scale[of_shape], orientation[of_shape])  # (m, v) each
        across, down = _place(across, x[of_shape, None]), _place(down, y[of_shape, None])
        rows[of_shape] = _fill(across[None], down)[0]
    return np.unpackbits(rows.view(np.uint8), axis=1).reshape(-1, _SIDE, _SIDE)


def render_packed() -> np.ndarray:
    """Draw the whole set with one bit per pixel: uint8, (737280, 512).

    `np.unpackbits(packed[i]).reshape(64, 64)` is image i.
    """
    _, scales, orientations, xs, ys = _levels()
    rows = np.empty(
        (len(_outlines()), len(scales) * len(orientations), len(xs), len(ys), _SIDE),
        dtype=np.uint64,
    )
    scale, orientation = (grid.ravel() for grid in np.meshgrid(scales, orientations, indexing="ij"))
    for shape, outline in enumerate(_outlines()):
        for pose, (across, down) in enumerate(
            zip(*_turn(outline, scale, orientation), strict=True)
        ):
            rows[shape, pose] = _fill(
                _place(across, xs[:, None])[:, None], _place(down, ys[:, None])
            )
    return rows.view(np.uint8).reshape(IMAGE_COUNT, _SIDE * _SIDE // 8)


def _levels() -> tuple[np.ndarray, ...]:
    """Return the values that each factor takes, in the order of `FACTOR_NAMES`."""
    ends = ((1, 3), (0.5, 1), (0, 2 * np.pi), (0, 1), (0, 1))
    return tuple(np.linspace(*end, size) for end, size in zip(ends, FACTOR_SIZES, strict=True))


def _outlines() -> tuple[np.ndarray, ...]:
    """Return the vertices of square, ellipse and heart at scale 1 and orientation 0.

    Each is float32, (v, 2), with x to the right and y down. The canvas extends from -1 to 1. Vertex
    counts and proportions were fitted to 10,000 published images: with any other count, at least
    200 of them have a wrong pixel.
    """
    side = 0.6
    square = side / 2 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    t = 2 * np.pi * np.arange(100) / 100
    ellipse = side / 2 * np.stack([1.33 * np.cos(t), np.sin(t) / 1.33], axis=1)
    t = 2 * np.pi * np.arange(150) / 150
    height = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    heart = side * np.stack([np.sin(t) ** 3 / 2, -height / 29 - 0.075], axis=1)
    return square.astype(np.float32), ellipse.astype(np.float32), heart.astype(np.float32)


def _turn(
    outline: np.ndarray, scale: np.ndarray, orientation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and rotate an outline, (v, 2), counter-clockwise: x and y, float32, (n, v) each."""
    # Cosines are computed in float64 and rounded: NumPy's float32 ones vary between processors.
    angle = orientation.astype(np.float32).astype(np.float64)
    cos = (np.cos(angle).astype(np.float32) * scale.astype(np.float32))[:, None]
    sin = (np.sin(angle).astype(np.float32) * scale.astype(np.float32))[:, None]
    x, y = outline.T
    return cos * x + sin * y, cos * y - sin * x


def _place(offset: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Move to a position in 0..1, the central half of the canvas: int32, in 1/256 pixel."""
    half = np.float32(_SIDE / 2)
    pixels = half * (offset + (position.astype(np.float32) - np.float32(0.5))) + half
    return np.rint(_SUBPIXEL * pixels).astype(np.int32)


def _fill(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fill m polygons at p horizontal positions.

    A row of centres is lit between its first and second crossing with the outline, and between its
    third and fourth. A centre on a left or bottom edge is lit, on a right or top edge it is not.
    This is the card's rule for triangles upside down, because its y axis points up. With the usual
    rule four of the 10,000 images are wrong.

    Args:
        x: Horizontal coordinates of the vertices, (p, m or 1, v).
        y: Vertical coordinates of the vertices, (m, v).

    Returns:
        Rows of pixels, uint64, (p, m, 64).
    """
    polygon, edge, row = _crossings(y)
    end = (edge + 1) % y.shape[1]
    y_start, x = y[polygon, edge], np.broadcast_to(x, (len(x), *y.shape))  # a view
    rise = y[polygon, end] - y_start
    x_start = x[:, polygon, edge]  # (p, crossings)
    # The first column whose centre is not left of the crossing, by exact division. Centres lie at
    # 256 column + 128. No shape reaches the border of the canvas, so no column needs clipping.
    ahead = (_CENTRE - x_start) * rise - (x[:, polygon, end] - x_start) * (
        _SUBPIXEL * row + _CENTRE - y_start
    )
    column = -(ahead // (_SUBPIXEL * rise))
    # "All from column a" xor "all from column b" is "from a up to b".
    word, first = np.unique(polygon * _SIDE + row, return_index=True)
    rows = np.zeros((len(x), len(y) * _SIDE), dtype=np.uint64)
    rows[:, word] = np.bitwise_xor.reduceat(_FROM_COLUMN[column], first, axis=1)
    return rows.reshape(len(x), len(y), _SIDE)


def _crossings(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the crossings of polygon edges with rows of pixel centres.

    An edge crosses the rows above its lower end, including that end and excluding its upper end.

    Args:
        y: Vertical coordinates of the vertices, (m, v).

    Returns:
        Polygon, edge and row of each crossing, sorted by polygon and row.
    """
    last = (y - _CENTRE) // _SUBPIXEL  # (m, v): the last row at or above each vertex
    ends = np.stack([last, np.roll(last, -1, axis=1)])
    above, below = ends.min(axis=0).ravel(), ends.max(axis=0).ravel()
    count = below - above
    edge = np.repeat(np.arange(y.size), count)
    row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + above[edge] + 1
    polygon, edge = np.divmod(edge, y.shape[1])
    order = np.argsort(polygon * _SIDE + row, kind="stable")
    return polygon[order], edge[order], row[order].astype(y.dtype)
