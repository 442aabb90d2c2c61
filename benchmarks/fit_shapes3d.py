"""Fit the measures of `room_renderer.Scene` to 34 of the 50 published images of 3D Shapes.

    python benchmarks/fit_shapes3d.py $CONTROLVAE_DATA/3dshapes                 # report and figure
    python benchmarks/fit_shapes3d.py $CONTROLVAE_DATA/3dshapes --rounds 6      # fit, then report

The fit starts from rough numbers. A round fits sizes and positions, then brightness, by least squares on pixels (SciPy), and looks for
better scales and orientations in between. Sixteen images are held out. The measures are printed to be
copied into `Scene`.
"""

import argparse
import time
from dataclasses import astuple, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from shapes3d_published import FACTORS, HELD_OUT, read_published

from controlvae.lab.data import room_renderer as room

GEOMETRY = (
    "focal",
    "horizon",
    "camera_height",
    "back_wall",
    "side_wall",
    "wall_height",
    "cube",
    "sphere",
    "cylinder",
    "capsule",
    "lift",
)
LIGHT = ("light", "spot", "spot_exponent", "floor", "wall", "object", "gloss")
# Rough numbers: the room from the outlines of its walls at 15 angles in the published animation, the
# objects from their widths, light and shade from single pixels.
START = room.Scene(
    focal=70.0,
    horizon=32.0,
    camera_height=3.1,
    back_wall=16.0,
    side_wall=15.0,
    wall_height=8.5,
    cube=2.8,
    sphere=1.7,
    cylinder=(1.5, 3.0),
    capsule=(1.3, 5.0),
    lift=0.2,
    light=(-8.0, 2.0, 30.0),
    spot=(-7.0, 2.0),
    spot_exponent=10.0,
    floor=(0.33, 1.0),
    wall=(1.0, 0.5),
    object=(0.4, 0.5, 1.0),
    gloss=(0.1, 0.1),
)
_SIGNED = ("light", "spot", "lift")  # positions; all other measures are positive
_STEP = 5e-3  # of finite differences, relative: an edge moves by a few hundredths of a pixel
_RESIDUAL_UNIT = 30.0  # grey levels from which on residuals count linearly


def draw_images(scene: room.Scene, factors: np.ndarray, samples: int) -> np.ndarray:
    """Return images with these factors: float, (n, 64, 64, 3)."""
    kernel, channels = room.resampling_kernel(samples), room.hue_channels()
    views: dict[int, room.View] = {}
    images = np.empty((len(factors), 64, 64, 3))
    for number, (floor, wall, thing, scale, shape, turn) in enumerate(factors.tolist()):
        if turn not in views:
            views[turn] = room.look(scene, turn, samples)
        drawn = room.draw(scene, views[turn], shape, float(room.SCALES[scale]))
        layers = room.filter_layers(*drawn, kernel) / room.FIXED_POINT
        for channel in range(3):
            places = (
                channel,
                3 + channels[floor, channel],
                9 + channels[wall, channel],
                15 + channels[thing, channel],
            )
            images[number, ..., channel] = layers[list(places)].sum(axis=0).reshape(64, 64)
    return images.clip(0, 255)


def flatten(scene: room.Scene, names: tuple[str, ...]) -> np.ndarray:
    """Return the values of these measures as one vector."""
    return np.concatenate([np.atleast_1d(getattr(scene, name)) for name in names])


def restore(scene: room.Scene, names: tuple[str, ...], vector: np.ndarray) -> room.Scene:
    """Return the scene with the values of these measures replaced."""
    values, start = {}, 0
    for name in names:
        old = getattr(scene, name)
        if isinstance(old, tuple):
            values[name] = tuple(map(float, vector[start : start + len(old)]))
            start += len(old)
        else:
            values[name] = float(vector[start])
            start += 1
    return replace(scene, **values)


def fit(
    scene: room.Scene,
    names: tuple[str, ...],
    images: np.ndarray,
    factors: np.ndarray,
    evaluations: int,
    samples: int = 2,
) -> room.Scene:
    """Fit some measures by least squares, robust against the texture that is not drawn."""
    start = flatten(scene, names)
    unit = np.maximum(np.abs(start), 0.2)

    def residuals(vector: np.ndarray) -> np.ndarray:
        drawn = draw_images(restore(scene, names, vector * unit), factors, samples)
        return ((drawn - images) / _RESIDUAL_UNIT).ravel()

    signed = np.concatenate(
        [np.full(np.size(getattr(scene, name)), name in _SIGNED) for name in names]
    )
    found = least_squares(
        residuals,
        start / unit,
        bounds=(np.where(signed, -np.inf, 0.0), np.inf),
        diff_step=_STEP,
        loss="soft_l1",
        max_nfev=evaluations,
    )
    return restore(scene, names, found.x * unit)


def find_poses(scene: room.Scene, images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the factors with the scale and orientation, next to the present ones, that fit best."""
    best, errors = factors.copy(), np.full(len(factors), np.inf)
    for scale, orientation in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)):
        changed = factors.copy()
        changed[:, 3] = np.clip(factors[:, 3] + scale, 0, 7)
        changed[:, 5] = np.clip(factors[:, 5] + orientation, 0, 14)
        error = np.abs(draw_images(scene, changed, 2) - images).mean(axis=(1, 2, 3))
        best[error < errors] = changed[error < errors]
        errors = np.minimum(errors, error)
    return best


def report(scene: room.Scene, images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Print the mean absolute error of fitted and held-out images. Returns the drawn ones."""
    drawn = draw_images(scene, factors, 4)
    error = np.abs(drawn - images).mean(axis=(1, 2, 3))
    for name, which in (("fitted", ~HELD_OUT), ("held out", HELD_OUT)):
        part = error[which]
        print(
            f"{name}: {which.sum()} images, mean {part.mean():.2f}, median "
            f"{np.median(part):.2f}, worst {part.max():.2f} of 255",
            flush=True,
        )
    return drawn


def save_figure(images: np.ndarray, drawn: np.ndarray, path: Path) -> None:
    """Write published | ours | difference of all images, five to a row, in double size."""
    from PIL import Image

    difference = 128 + (drawn - images) / 2
    triples = np.concatenate([images, drawn, difference], axis=2).clip(0, 255).astype(np.uint8)
    padded = np.pad(triples, ((0, 0), (1, 1), (2, 2), (0, 0)), constant_values=255)
    count, height, width, _ = padded.shape
    sheet = padded.reshape(count // 5, 5, height, width, 3).swapaxes(1, 2)
    figure = Image.fromarray(sheet.reshape(count // 5 * height, 5 * width, 3))
    figure.resize((2 * figure.width, 2 * figure.height), Image.Resampling.NEAREST).save(path)


def main() -> None:
    """Fit if asked to, and compare with the published images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=4, help="per fit")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    images, factors = read_published(options.folder), FACTORS
    scene = START if options.rounds else room.Scene()
    start, seen = time.perf_counter(), ~HELD_OUT
    for _ in range(options.rounds):
        for names in (LIGHT, GEOMETRY):
            scene = fit(scene, names, images[seen], factors[seen], options.evaluations)
        factors = find_poses(scene, images, factors)
        print(f"{time.perf_counter() - start:.0f} s, poses {factors[:, [3, 5]].tolist()}")
        for field, value in zip(fields(scene), astuple(scene), strict=True):
            print(f"    {field.name} = {np.round(value, 4).tolist()}")
        report(scene, images, factors)
    drawn = report(scene, images, factors)
    if options.figure:
        save_figure(images, drawn, options.figure)


if __name__ == "__main__":
    main()
