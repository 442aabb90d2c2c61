"""Small pictures of noise, and folders of them."""

import numpy as np
from PIL import Image


def photos(count, height=12, width=10, channels=3, seed=0):
    return np.random.default_rng(seed).integers(
        256, size=(count, height, width, channels), dtype=np.uint8
    )


def save(folder, pixels, names):
    for array, name in zip(pixels, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array.squeeze()).save(
            folder / name, **({"lossless": True} if name.endswith("webp") else {})
        )
    return str(folder)
