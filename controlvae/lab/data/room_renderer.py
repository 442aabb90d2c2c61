"""Renderer of 3D Shapes: draws the room, its object and the shadow by ray casting, with NumPy.

The colours of floor, wall and object enter a pixel by addition: a pixel is its share of sky, floor,
wall and object, each in its colour and shade. So only the 480 combinations of scale, shape and
orientation are drawn, as layers, and any of the 480,000 images is a sum of four of them per
channel. A colour channel is 0, 0.2, ... or 1 in all ten hues, and light saturates at 1, hence one
layer per part and value.

The numbers of `Scene` were fitted to 34 published images by `benchmarks/fit_shapes3d.py`: by least
squares on pixels, sizes and positions in turn with brightness. Room and camera started from the
outlines of the walls in the published animation. The faint texture of floor and walls is left out,
and is most of what remains: 2.8 of 255 on 16 other images.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from controlvae.lab.data.room_solids import Sizes, hit_solid, passes_near

FACTOR_NAMES = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
UNORDERED = ("shape",)
FACTOR_SIZES = (10, 10, 10, 8, 4, 15)
IMAGE_COUNT = 480_000
GEOMETRIES = 480  # scale, shape, orientation; the last varies fastest
SIDE = 64
# Changes whenever pixels change: it is part of the data's fingerprint.
VERSION = 1

SCALES = np.linspace(0.75, 1.25, 8)
# In degrees. Which end is the first follows from the published animation, where it turns from the
# room's right corner to the left one, as all other factors run through their values there.
ORIENTATIONS = np.linspace(-30.0, 30.0, 15)
HUES = np.linspace(0.0, 0.9, 10)
CHANNEL_VALUES = np.linspace(0.0, 1.0, 6)
SKY = np.array([153, 226, 249]) / 255
# Layers of a geometry: three of the sky (red, green, blue), six each of floor, wall and object.
LAYERS = 3 + 3 * len(CHANNEL_VALUES)
FIXED_POINT = 64  # layers are integers of 1/64 grey level, so that sums are equal on any device
_CAMERA_DISTANCE = 10.0  # from the object's axis; the unit of length
_SAMPLES = 4  # per pixel and direction
_BLOCKS = 8  # of pixels that are filtered together
_SKY, _FLOOR, _WALL, _OBJECT = range(4)


@dataclass(frozen=True)
class Scene:
    """Measures of the scene. The camera is 10 units from the object's axis and looks ahead level.

    Attributes:
        focal: Focal length in pixels of a 64x64 image.
        horizon: Row of the horizon in such an image.
        camera_height: Height of the camera, which turns around the object.
        back_wall: Distance of the back wall from the object's axis.
        side_wall: Distance of the walls on both sides.
        wall_height: Height of the walls; above them is sky.
        cube: Side of the cube at scale 1.
        sphere: Radius of the sphere.
        cylinder: Radius and height of the cylinder.
        capsule: Radius and height of the capsule.
        lift: Height of the ground around the object above the lower edges of the walls.
        light: Position of the spotlight. It is fixed in the room.
        spot: Point of the floor that the spotlight is aimed at.
        spot_exponent: The light falls off as this power of the cosine of the angle to its axis.
        floor: Brightness of the floor in shadow, and weight of the spotlight.
        wall: Weights of the headlight, which is at the camera, and of the spotlight.
        object: Brightness without light, weights of the headlight and of the spotlight.
        gloss: Brightness of the white highlight and its exponent.
    """

    focal: float = 69.6
    horizon: float = 32.3
    camera_height: float = 3.136
    back_wall: float = 15.68
    side_wall: float = 15.23
    wall_height: float = 8.532
    cube: float = 2.786
    sphere: float = 1.679
    cylinder: tuple[float, float] = (1.484, 3.001)
    capsule: tuple[float, float] = (1.27, 5.136)
    lift: float = 0.2114
    light: tuple[float, float, float] = (-9.648, 2.203, 44.77)
    spot: tuple[float, float] = (-7.116, 1.768)
    spot_exponent: float = 19.4
    floor: tuple[float, float] = (0.3434, 0.9794)
    wall: tuple[float, float] = (1.003, 0.7642)
    object: tuple[float, float, float] = (0.4744, 0.4819, 0.997)
    gloss: tuple[float, float] = (0.09173, 0.01706)

    def sizes(self, shape: int, scale: float) -> Sizes:
        """Return the extents of an object."""
        solids = (
            (self.cube / 2, self.cube),
            self.cylinder,
            (self.sphere, 2 * self.sphere),
            self.capsule,
        )
        radius, height = solids[shape]
        return Sizes(radius * scale, height * scale, self.lift)


class View(NamedTuple):
    """What the camera sees of the empty room from one angle, for each of n rays.

    Attributes:
        camera: Position, (3,).
        rays: Directions, (n, 3).
        part: What the ray meets: sky, floor or wall.
        distance: Distance to it.
        shade: Brightness of what it meets, without a shadow.
        floor: Indices of the rays that meet the floor.
        points: Where these meet it, (m, 3).
        to_light: Unit vectors from there to the light, (m, 3).
    """

    camera: np.ndarray
    rays: np.ndarray
    part: np.ndarray
    distance: np.ndarray
    shade: np.ndarray
    floor: np.ndarray
    points: np.ndarray
    to_light: np.ndarray


def hue_channels() -> np.ndarray:
    """Return the place of red, green and blue in `CHANNEL_VALUES` for each hue: int64, (10, 3)."""
    tenths = np.rint(10 * HUES).astype(np.int64)[:, None]
    # Hue 0 is red, 1/3 green, 2/3 blue; in tenths a channel rises or falls by 0.6 per step.
    distance = np.abs((3 * tenths - np.array([0, 10, 20]) + 15) % 30 - 15)  # in thirtieths
    value: np.ndarray = np.clip(10 - distance, 0, 5)
    return value


def geometry_index(scale: Any, shape: Any, orientation: Any) -> Any:
    """Return the number of a geometry from its factors: class numbers, in any kind of array."""
    return (scale * FACTOR_SIZES[4] + shape) * FACTOR_SIZES[5] + orientation


def render_layers(
    side: int = SIDE, samples: int = _SAMPLES, scene: Scene | None = None
) -> np.ndarray:
    """Draw the layers of all geometries: int16, (480, 21, side * side), in 1/64 grey level.

    Args:
        side: Height and width of an image in pixels.
        samples: Rays per pixel of a 64x64 image, in each direction.
        scene: Other measures than the fitted ones.
    """
    layers = np.empty((GEOMETRIES, LAYERS, side * side), np.int16)
    scene = scene or Scene()
    kernel = resampling_kernel(samples, side)
    for orientation in range(FACTOR_SIZES[5]):
        view = look(scene, orientation, samples)
        for scale in range(FACTOR_SIZES[3]):
            for shape in range(FACTOR_SIZES[4]):
                drawn = draw(scene, view, shape, float(SCALES[scale]))
                layers[geometry_index(scale, shape, orientation)] = filter_layers(*drawn, kernel)
    return layers


def resampling_kernel(samples: int, side: int = SIDE) -> np.ndarray:
    """Return the weights of rays in pixels, (side, 64 * samples): a cubic filter.

    The published images overshoot at edges as those of a cubic filter do (Keys, a = -1/2).
    """
    at = (np.arange(SIDE * samples) + 0.5) / samples
    distance = np.abs(at - (np.arange(SIDE)[:, None] + 0.5))
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.reshape(side, SIDE // side, -1).mean(axis=1).astype(np.float32)


def look(scene: Scene, orientation: int, samples: int) -> View:
    """Cast all rays of an orientation into the empty room."""
    angle = np.deg2rad(ORIENTATIONS[orientation])
    ahead = np.array([-np.sin(angle), np.cos(angle), 0])
    right = np.array([np.cos(angle), np.sin(angle), 0])
    camera = np.array([0, 0, scene.camera_height]) - _CAMERA_DISTANCE * ahead
    at = (np.arange(SIDE * samples) + 0.5) / samples
    across, down = (at - SIDE / 2) / scene.focal, (at - scene.horizon) / scene.focal
    rays = ahead + across[None, :, None] * right - down[:, None, None] * np.array([0, 0, 1])
    rays = (rays / np.linalg.norm(rays, axis=2, keepdims=True)).reshape(-1, 3).astype(np.float32)
    camera = camera.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        floor = np.where(rays[:, 2] < 0, -camera[2] / rays[:, 2], np.inf)
        back = np.where(rays[:, 1] > 0, (scene.back_wall - camera[1]) / rays[:, 1], np.inf)
        side = (np.sign(rays[:, 0]) * scene.side_wall - camera[0]) / rays[:, 0]
    wall = np.minimum(back, np.where(np.isfinite(side), side, np.inf))
    wall = np.where(camera[2] + wall * rays[:, 2] <= scene.wall_height, wall, np.inf)
    distance = np.minimum(floor, wall).astype(np.float32)
    part = np.where(floor < wall, _FLOOR, np.where(np.isfinite(wall), _WALL, _SKY))
    shade = np.zeros(len(rays), np.float32)
    of_wall = np.flatnonzero(part == _WALL)
    is_back = (back < side)[of_wall]
    normal = np.zeros((len(of_wall), 3), np.float32)
    normal[is_back, 1] = -1
    normal[~is_back, 0] = -np.sign(rays[of_wall[~is_back], 0])
    points = camera + distance[of_wall, None] * rays[of_wall]
    to_light, strength = _towards_light(scene, points)
    shade[of_wall] = scene.wall[0] * _cosine(normal, -rays[of_wall])
    shade[of_wall] += scene.wall[1] * strength * _cosine(normal, to_light)
    of_floor = np.flatnonzero(part == _FLOOR)
    # Objects stand, and shadows fall, a little above the edges of the walls. The published images
    # have it so: with one level for both, shadows are a pixel too low.
    ground = ((scene.lift - camera[2]) / rays[of_floor, 2]).astype(np.float32)
    points = camera + ground[:, None] * rays[of_floor]
    to_light, strength = _towards_light(scene, points)
    shade[of_floor] = scene.floor[0] + scene.floor[1] * strength * to_light[:, 2]
    return View(camera, rays, part, distance, shade, of_floor, points, to_light)


def draw(
    scene: Scene, view: View, shape: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put an object into the room.

    Args:
        scene: Measures of the scene.
        view: The empty room from one angle.
        shape: Class number of the shape.
        scale: The scale itself.

    Returns:
        Part, brightness and white highlight of every ray, (n,) each.
    """
    sizes = scene.sizes(shape, scale)
    part, shade, gloss = view.part.copy(), view.shade.copy(), np.zeros_like(view.shade)
    near = np.flatnonzero(passes_near(sizes, view.points, view.to_light))
    shadow = hit_solid(shape, sizes, view.points[near], view.to_light[near])
    shade[view.floor[near[np.isfinite(shadow.distance)]]] = scene.floor[0]
    near = np.flatnonzero(passes_near(sizes, view.camera, view.rays))
    hits = hit_solid(shape, sizes, view.camera, view.rays[near])
    in_front = hits.distance < view.distance[near]
    seen, normal = near[in_front], hits.normal[in_front]
    towards = -view.rays[seen]
    to_light, strength = _towards_light(
        scene, view.camera - hits.distance[in_front, None] * towards
    )
    ambient, headlight, spotlight = scene.object
    lit = _cosine(normal, to_light)
    part[seen] = _OBJECT
    shade[seen] = ambient + headlight * _cosine(normal, towards) + spotlight * strength * lit
    halfway = to_light + towards
    halfway /= np.linalg.norm(halfway, axis=1, keepdims=True)
    # A highlight is only where the light reaches, as in fixed-function OpenGL.
    gloss[seen] = scene.gloss[0] * _cosine(normal, halfway) ** scene.gloss[1] * (lit > 0)
    return part, shade, gloss


def filter_layers(
    part: np.ndarray, shade: np.ndarray, gloss: np.ndarray, kernel: np.ndarray
) -> np.ndarray:
    """Turn what rays met into layers of pixels: int16, (21, pixels).

    Args:
        part: What each ray met.
        shade: Its brightness.
        gloss: The white light that is added.
        kernel: Weights of rays in pixels.
    """
    rays = kernel.shape[1]
    planes = _planes(part, shade, gloss).reshape(-1, rays, rays)
    columns = _resample(planes, kernel).swapaxes(1, 2)
    pixels = _resample(columns, kernel).swapaxes(1, 2) * (255 * FIXED_POINT)
    return np.rint(pixels).astype(np.int16).reshape(LAYERS, -1)


def _resample(planes: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Multiply with the kernel along the last axis, block by block: most of its weights are 0."""
    blocks = []
    for rows in np.split(kernel, _BLOCKS):
        used = np.flatnonzero(rows.any(axis=0))
        reach = slice(used[0], used[-1] + 1)
        blocks.append(planes[..., reach] @ rows[:, reach].T)
    return np.concatenate(blocks, axis=-1)


def _planes(part: np.ndarray, shade: np.ndarray, gloss: np.ndarray) -> np.ndarray:
    """Return the layers ray by ray: float32, (21, rays)."""
    planes = np.zeros((LAYERS, len(part)), np.float32)
    for channel, value in enumerate(SKY):
        planes[channel] = np.float32(value) * (part == _SKY)
    first = len(SKY)
    for each in (_FLOOR, _WALL, _OBJECT):
        rays = np.flatnonzero(part == each)
        values = CHANNEL_VALUES.astype(np.float32)[:, None]
        lit = np.minimum(values * shade[rays] + gloss[rays], 1)
        planes[first : first + len(values), rays] = lit
        first += len(values)
    return planes


def _towards_light(scene: Scene, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors from points to the light, and how much of it arrives there."""
    light = np.array(scene.light, np.float32)
    axis = light - np.array([*scene.spot, 0], np.float32)
    axis /= np.linalg.norm(axis)
    to_light = light - points
    to_light /= np.linalg.norm(to_light, axis=1, keepdims=True)
    return to_light, np.maximum(to_light @ axis, 0) ** np.float32(scene.spot_exponent)


def _cosine(normal: np.ndarray, direction: np.ndarray) -> np.ndarray:
    cosine: np.ndarray = np.maximum(np.sum(normal * direction, axis=1), 0)
    return cosine
