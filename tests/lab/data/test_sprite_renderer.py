"""Rendered dSprites, compared with the published images."""

import os
from pathlib import Path

import numpy as np
import pytest

from controlvae.lab.data import sprite_renderer as sprites


@pytest.fixture(scope="module")
def packed():
    return sprites.render_packed()


@pytest.fixture(scope="module")
def published():
    root = os.environ.get("CONTROLVAE_DATA")
    if root is None:
        pytest.skip("CONTROLVAE_DATA does not name a data folder")
    path = Path(root) / "dsprites" / "dsprites_real_10k.npz"
    if not path.is_file():
        pytest.skip(f"no published images at {path}")
    with np.load(path) as file:
        return dict(file)


def unpack(packed):
    return np.unpackbits(packed, axis=1).reshape(-1, 64, 64)


def test_every_published_image_is_drawn_exactly(published):
    drawn = sprites.render(published["original_dataset_indices"])
    wrong = (drawn != published["imgs"]).sum(axis=(1, 2))
    assert wrong.max() == 0, f"{(wrong > 0).sum()} images differ, the worst in {wrong.max()} pixels"


def test_factors_are_the_published_ones(published):
    classes = sprites.factor_classes(published["original_dataset_indices"])
    np.testing.assert_array_equal(classes, published["latents_classes"])
    np.testing.assert_allclose(
        sprites.sprite_factor_values(classes), published["latents_values"], rtol=1e-12
    )


def test_whole_set_has_as_many_lit_pixels_as_the_published_one(packed):
    lit = sum(int(unpack(part).sum(dtype=np.int64)) for part in np.array_split(packed, 360))
    assert lit == 128_328_862


def test_single_images_equal_those_of_the_whole_set(packed):
    # The indices are unsorted and repeat.
    indices = np.random.default_rng(0).integers(sprites.IMAGE_COUNT, size=3_000)
    np.testing.assert_array_equal(sprites.render(indices), unpack(packed[indices]))


def test_last_orientation_equals_the_first(packed):
    by_factor = packed.reshape(*sprites.FACTOR_SIZES, -1)
    np.testing.assert_array_equal(by_factor[:, :, -1], by_factor[:, :, 0])


def test_images_are_numbered_with_the_last_factor_fastest():
    classes = sprites.factor_classes()
    assert classes.shape == (sprites.IMAGE_COUNT, 5)
    assert classes.dtype == np.int64
    np.testing.assert_array_equal(
        np.ravel_multi_index(classes.T, sprites.FACTOR_SIZES), np.arange(sprites.IMAGE_COUNT)
    )
    np.testing.assert_array_equal(
        classes[[1, 32, -1]], [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [2, 5, 39, 31, 31]]
    )
    np.testing.assert_array_equal(
        sprites.factor_classes(np.array([5, 99_999])), classes[[5, 99_999]]
    )


def draw(shape, scale=5, orientation=0, x=15, y=15):
    index = np.ravel_multi_index((shape, scale, orientation, x, y), sprites.FACTOR_SIZES)
    return sprites.render(np.array([index]))[0]


def centroid(image):
    row, column = np.nonzero(image)
    return column.mean(), row.mean()


@pytest.mark.parametrize("shape", range(3))
def test_x_moves_right_and_y_moves_down_by_half_the_canvas(shape):
    moved = np.subtract(centroid(draw(shape, x=31)), centroid(draw(shape, x=0)))
    np.testing.assert_allclose(moved, (32, 0), atol=1e-9)  # full pixels: the same image
    moved = np.subtract(centroid(draw(shape, y=31)), centroid(draw(shape, y=0)))
    np.testing.assert_allclose(moved, (0, 32), atol=1e-9)


@pytest.mark.parametrize("shape", range(3))
def test_area_grows_as_scale_squared(packed, shape):
    by_factor = packed.reshape(*sprites.FACTOR_SIZES, -1)
    # Over all positions, so that the sampling's chances average out.
    area = [unpack(by_factor[shape, scale, 7].reshape(1024, -1)).mean() for scale in range(6)]
    np.testing.assert_allclose(np.divide(area, area[-1]), np.linspace(0.5, 1, 6) ** 2, rtol=0.005)


@pytest.mark.parametrize("shape", range(3))
def test_orientation_turns_counter_clockwise(shape):
    angle = 2 * np.pi * 3 / 39
    x, y = np.meshgrid(
        *[np.arange(64) + 0.5 - (16 + 32 * 15 / 31)] * 2
    )  # from the sprite's centre, y down

    def turned(angle):  # each pixel looks up where it came from
        column = x * np.cos(angle) - y * np.sin(angle) + 16 + 32 * 15 / 31
        row = x * np.sin(angle) + y * np.cos(angle) + 16 + 32 * 15 / 31
        return draw(shape)[np.clip(row, 0, 63).astype(int), np.clip(column, 0, 63).astype(int)]

    target = draw(shape, orientation=3)
    # Resampling a coarse image changes some edge pixels; the wrong direction changes far more.
    assert (turned(angle) != target).sum() < 0.1 * target.sum()
    assert (turned(-angle) != target).sum() > 0.2 * target.sum()


def test_unknown_images_are_refused():
    with pytest.raises(ValueError, match="737279"):
        sprites.render(np.array([sprites.IMAGE_COUNT]))
    with pytest.raises(ValueError, match="integers"):
        sprites.render(np.array([0.5]))
