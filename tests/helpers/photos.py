"""Images of random pixels, and folders of them."""

import numpy as np
import torch
from PIL import Image


def photos(count, height=12, width=10, channels=3, seed=0):
    """Return random images: uint8, (count, height, width, channels)."""
    size = (count, height, width, channels)
    return np.random.default_rng(seed).integers(256, size=size, dtype=np.uint8)


def save(folder, pixels, names):
    """Save images as files below a folder and return its path."""
    for array, name in zip(pixels, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        options = {"lossless": True} if name.endswith("webp") else {}
        Image.fromarray(array.squeeze()).save(folder / name, **options)
    return str(folder)


def pixels_of(dataset):
    """Return the images of a data set: uint8, (count, height, width, channels)."""
    images = dataset.batch(torch.arange(len(dataset)))
    return (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
