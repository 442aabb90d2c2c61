"""Where rays meet the four solids of 3D Shapes: cube, cylinder, sphere and capsule.

A solid stands upright with its axis at x = y = 0. Rays are rows of origins and of unit
directions, float32. Each function returns the distance along every ray, infinite where it misses,
and the outward normal there.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SOLIDS = ("cube", "cylinder", "sphere", "capsule")  # in the order of the factor `shape`
_TOO_NEAR = 1e-3  # a shadow ray starts on the surface itself
_PARALLEL = np.float32(1e-9)


class Hits(NamedTuple):
    """Distances along rays, (n,), and normals, (n, 3)."""

    distance: np.ndarray
    normal: np.ndarray


class Sizes(NamedTuple):
    """Extents of a solid: half the side of a cube, or a radius; height; height it stands at."""

    radius: float
    height: float
    lift: float

    def bounding_radius(self) -> float:
        """Return the radius of a sphere around the solid's centre that contains it."""
        return float(np.hypot(np.sqrt(2) * self.radius, self.height / 2))


def hit_solid(shape: int, sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> Hits:
    """Intersect rays with a solid.

    Args:
        shape: Its place in `SOLIDS`.
        sizes: Its extents.
        origin: Where rays start, (n, 3) or (3,).
        direction: Unit vectors, (n, 3).
    """
    solvers: tuple[Callable[[Sizes, np.ndarray, np.ndarray], Hits], ...] = (
        _hit_cube,
        _hit_cylinder,
        _hit_sphere,
        _hit_capsule,
    )
    raised = np.broadcast_to(origin - _raise(sizes), direction.shape)
    return solvers[shape](sizes, raised, direction)


def passes_near(sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return which rays meet the sphere around a solid; the others cannot hit it."""
    centre = np.array([0, 0, sizes.height / 2], np.float32)
    away = centre + _raise(sizes) - origin
    along = np.sum(away * direction, axis=-1)
    squared = np.sum(away * away, axis=-1) - along * along
    result: np.ndarray = (squared < sizes.bounding_radius() ** 2) & (along > 0)
    return result


def _raise(sizes: Sizes) -> np.ndarray:
    return np.array([0, 0, sizes.lift], np.float32)


def _hit_cube(sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> Hits:
    half = sizes.radius
    low = np.array([-half, -half, 0], np.float32)
    high = np.array([half, half, sizes.height], np.float32)
    step = np.where(np.abs(direction) < _PARALLEL, _PARALLEL, direction)
    first, second = (low - origin) / step, (high - origin) / step
    entry, leave = np.minimum(first, second), np.maximum(first, second)
    axis = entry.argmax(axis=1)
    distance = entry.max(axis=1)
    is_hit = (leave.min(axis=1) > distance) & (distance > _TOO_NEAR)
    normal = np.zeros_like(direction)
    rows = np.arange(len(direction))
    normal[rows, axis] = -np.sign(direction[rows, axis])
    return Hits(np.where(is_hit, distance, np.inf).astype(np.float32), normal)


def _hit_sphere(sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> Hits:
    return _hit_ball(sizes.radius, sizes.radius, origin, direction)


def _hit_cylinder(sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> Hits:
    side = _hit_tube(sizes.radius, 0.0, sizes.height, origin, direction)
    rise = np.where(np.abs(direction[:, 2]) < _PARALLEL, _PARALLEL, direction[:, 2])
    distance = (sizes.height - origin[:, 2]) / rise
    across = origin[:, :2] + distance[:, None] * direction[:, :2]
    is_hit = (distance > _TOO_NEAR) & (np.sum(across * across, axis=1) <= sizes.radius**2)
    normal = np.zeros_like(direction)
    normal[:, 2] = 1
    lid = Hits(np.where(is_hit, distance, np.inf).astype(np.float32), normal)
    return _nearest(side, lid)


def _hit_capsule(sizes: Sizes, origin: np.ndarray, direction: np.ndarray) -> Hits:
    radius, top = sizes.radius, sizes.height - sizes.radius
    caps = (_hit_ball(radius, height, origin, direction) for height in (radius, top))
    return _nearest(_hit_tube(radius, radius, top, origin, direction), *caps)


def _hit_ball(radius: float, height: float, origin: np.ndarray, direction: np.ndarray) -> Hits:
    away = origin - np.array([0, 0, height], np.float32)
    along = np.sum(away * direction, axis=1)
    spare = along * along - np.sum(away * away, axis=1) + radius * radius
    distance = -along - np.sqrt(np.maximum(spare, 0))
    is_hit = (spare > 0) & (distance > _TOO_NEAR)
    normal = (away + distance[:, None] * direction) / np.float32(radius)
    return Hits(np.where(is_hit, distance, np.inf).astype(np.float32), normal)


def _hit_tube(
    radius: float, low: float, high: float, origin: np.ndarray, direction: np.ndarray
) -> Hits:
    """Intersect rays with the side of an upright cylinder between two heights."""
    away, step = origin[:, :2], direction[:, :2]
    square = np.maximum(np.sum(step * step, axis=1), _PARALLEL)
    along = np.sum(away * step, axis=1)
    spare = along * along - square * (np.sum(away * away, axis=1) - radius * radius)
    distance = (-along - np.sqrt(np.maximum(spare, 0))) / square
    height = origin[:, 2] + distance * direction[:, 2]
    is_hit = (spare > 0) & (distance > _TOO_NEAR) & (height >= low) & (height <= high)
    normal = np.zeros_like(direction)
    normal[:, :2] = (away + distance[:, None] * step) / np.float32(radius)
    return Hits(np.where(is_hit, distance, np.inf).astype(np.float32), normal)


def _nearest(*surfaces: Hits) -> Hits:
    best = surfaces[0]
    for other in surfaces[1:]:
        is_nearer = other.distance < best.distance
        best = Hits(
            np.where(is_nearer, other.distance, best.distance),
            np.where(is_nearer[:, None], other.normal, best.normal),
        )
    return best
