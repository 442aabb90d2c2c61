"""How far edges of the rendered 3D Shapes are from those of the published images."""

import numpy as np

from controlvae.lab.data import room_renderer as room


def misplaced_pixels(scene: room.Scene, image: np.ndarray, factors: np.ndarray) -> int:
    """Count pixels at least one pixel inside a part that have the hue of another part.

    A part is sky, floor, wall or object, as rendered. Its outermost pixels, and those that the
    filter mixes with a neighbour, are left out; so are parts of one hue, which look alike. The count
    is 0 if every edge between two hues is within one pixel of where it is published.

    Args:
        scene: Measures of the rendered scene.
        image: A published image, (64, 64, 3).
        factors: Its factors as class numbers.
    """
    samples = 4
    view = room.look(scene, int(factors[5]), samples)
    part, _, _ = room.draw(scene, view, int(factors[4]), float(room.SCALES[factors[3]]))
    blocks = part.reshape(64, samples, 64, samples).swapaxes(1, 2).reshape(64, 64, -1)
    is_pure = (blocks == blocks[..., :1]).all(axis=2)
    parts = np.where(is_pure, blocks[..., 0], -1)
    inside = np.ones((64, 64), bool)
    padded = np.pad(parts, 1, mode="edge")
    for down in range(3):
        for right in range(3):
            inside &= padded[down : down + 64, right : right + 64] == parts
    colours = np.array([room.SKY, *room.hue_channels()[factors[:3]] / 5])
    unit = colours / np.linalg.norm(colours, axis=1, keepdims=True)
    pixels = image / np.maximum(np.linalg.norm(image, axis=2, keepdims=True), 1)
    likeness = pixels @ unit.T  # (64, 64, 4): cosine between a pixel's colour and a part's
    own = np.take_along_axis(likeness, np.maximum(parts, 0)[..., None], axis=2)[..., 0]
    return int((inside & (likeness.max(axis=2) > own + 0.02)).sum())
