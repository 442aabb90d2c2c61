"""Rendered 3D Shapes: its layers, its geometry, and the published images."""

import colorsys
import importlib
import os
from pathlib import Path

import numpy as np
import pytest

from controlvae.lab.data import room_renderer as room
from controlvae.lab.data.room_solids import SOLIDS, Sizes, hit_solid, passes_near

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PUBLISHED = Path(os.environ.get("CONTROLVAE_DATA", "data")).absolute() / "3dshapes"
SIZES = Sizes(1.0, 3.0, 0.25)
SPHERE = Sizes(1.5, 3.0, 0.25)  # as high as wide


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def random_rays(count=4_000):
    rng = np.random.default_rng(1)
    origin = np.concatenate([rng.normal(0, 4, (count, 2)), rng.uniform(4, 8, (count, 1))], axis=1)
    target = rng.uniform((-2, -2, -0.25), (2, 2, 3.75), (count, 3))
    direction = target - origin
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return origin.astype(np.float32), direction.astype(np.float32)


def signed_distance(shape, points):
    """Return a function of points that is negative inside a solid, written another way."""
    sizes = SPHERE if SOLIDS[shape] == "sphere" else SIZES
    x, y, z = (points - [0, 0, sizes.lift]).T
    beyond = np.maximum(-z, z - sizes.height)
    match SOLIDS[shape]:
        case "cube":
            return np.max([np.abs(x) - sizes.radius, np.abs(y) - sizes.radius, beyond], axis=0)
        case "cylinder":
            return np.maximum(np.hypot(x, y) - sizes.radius, beyond)
        case _:
            nearest = np.clip(z, sizes.radius, sizes.height - sizes.radius)
            return np.sqrt(x**2 + y**2 + (z - nearest) ** 2) - sizes.radius


@pytest.mark.parametrize("shape", range(4), ids=SOLIDS)
def test_rays_end_where_they_first_meet_the_solid(shape):
    sizes = SPHERE if SOLIDS[shape] == "sphere" else SIZES
    origin, direction = random_rays()
    hits = hit_solid(shape, sizes, origin, direction)
    is_hit = np.isfinite(hits.distance)
    assert 0.2 < is_hit.mean() < 0.9
    end = origin[is_hit] + hits.distance[is_hit, None] * direction[is_hit]
    assert np.abs(signed_distance(shape, end)).max() < 1e-4
    # A step along the normal leaves the solid, and the normal looks towards the ray.
    assert (signed_distance(shape, end + 1e-2 * hits.normal[is_hit]) > 0).all()
    assert (np.sum(hits.normal[is_hit] * direction[is_hit], axis=1) < 0).all()
    # Marching along the rays finds the same hits.
    marched = np.full(len(origin), np.inf)
    for distance in np.arange(0, 20, 0.02)[::-1]:
        marched[signed_distance(shape, origin + distance * direction) < 0] = distance
    both = is_hit & np.isfinite(marched)
    assert (is_hit != np.isfinite(marched)).mean() < 0.01  # steps may miss what a ray grazes
    assert np.mean(np.abs(marched[both] - hits.distance[both]) > 0.05) < 0.01
    assert passes_near(sizes, origin, direction)[is_hit].all()


def test_hues_are_those_of_hsv():
    expected = [colorsys.hsv_to_rgb(hue, 1, 1) for hue in room.HUES]
    assert np.allclose(room.CHANNEL_VALUES[room.hue_channels()], expected)


def test_filter_keeps_a_constant_picture_and_its_mean():
    kernel = room.resampling_kernel(4)
    assert np.allclose(kernel.sum(axis=1), 1, atol=1e-6)
    halves = room.resampling_kernel(4, 32)
    assert np.allclose(halves, (kernel[::2] + kernel[1::2]) / 2)


def test_layers_of_an_image_cover_it_once():
    scene, kernel = room.Scene(), room.resampling_kernel(2)
    view = room.look(scene, 4, 2)
    part, shade, gloss = room.draw(scene, view, 1, 1.0)
    lit = room.filter_layers(part, np.ones_like(shade), np.zeros_like(gloss), kernel)
    lit = lit / (255 * room.FIXED_POINT)
    sky = lit[0] / room.SKY[0]
    assert np.abs(sky + lit[8] + lit[14] + lit[20] - 1).max() < 2e-4
    assert not lit[[3, 9, 15]].any()  # the layers of colour 0
    assert np.abs(lit[17] - 0.4 * lit[20]).max() < 2e-4


def test_larger_objects_cover_more_and_rooms_turn():
    scene = room.Scene()
    for shape in range(4):
        views = [room.look(scene, turn, 2) for turn in (0, 7, 14)]
        areas = [(room.draw(scene, views[1], shape, size)[0] == 3).sum() for size in room.SCALES]
        assert (np.diff(areas) > 0).all()
        # Seen from -30 and from 30 degrees, the outlines of all parts mirror each other.
        left, _, right = (room.draw(scene, view, shape, 1.0)[0].reshape(128, 128) for view in views)
        assert (left != right[:, ::-1]).mean() < 0.003


@pytest.fixture
def published(benchmark):
    reader = benchmark("shapes3d_published")
    if not all((PUBLISHED / name).is_file() for name in reader.GRIDS):
        pytest.skip(
            f"no published images of 3D Shapes in {PUBLISHED}; CONTROLVAE_DATA names the data folder"
        )
    return reader, reader.read_published(PUBLISHED)


def test_published_images_are_reproduced(benchmark, published):
    """Every image, of those the fit has seen and of those it has not, to 8 of 255 and a pixel."""
    reader, images = published
    fit, edges = benchmark("fit_shapes3d"), benchmark("shapes3d_edges")
    scene = room.Scene()
    drawn = fit.draw_images(scene, reader.FACTORS, 4)
    error = np.abs(drawn - images).mean(axis=(1, 2, 3))
    assert error.max() < 8
    assert error[reader.HELD_OUT].mean() < 5
    assert reader.HELD_OUT.sum() >= 15
    for image, factors in zip(images, reader.FACTORS, strict=True):
        assert edges.misplaced_pixels(scene, image, factors) == 0


def test_edges_that_are_two_pixels_off_are_noticed(benchmark, published):
    reader, images = published
    edges = benchmark("shapes3d_edges")
    for shift in (2, -2):
        moved = [
            edges.misplaced_pixels(room.Scene(), np.roll(image, shift, axis), factors)
            for axis in (0, 1)
            for image, factors in zip(images[25:], reader.FACTORS[25:], strict=True)
        ]
        assert np.mean(np.array(moved) > 0) > 0.9
