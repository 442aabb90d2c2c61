"""2D Shapes: packed pixels, the original file, and smaller images."""

import numpy as np
import pytest
import torch

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data import dsprites, sprite_renderer
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset

ORIGINAL = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"


def test_packed_bits_decode_to_the_original_pixels():
    pixels = np.random.default_rng(1).integers(0, 2, (20, 1, 16, 16), dtype=np.uint8)
    packed = torch.from_numpy(np.packbits(pixels.reshape(20, -1), axis=1))
    images = BinaryImages(packed, (1, 16, 16), "random")
    indices = torch.tensor([3, 19, 3, 0])
    assert torch.equal(images.batch(indices), torch.from_numpy(pixels[indices]).float())


def test_original_file_replaces_the_renderer(tmp_path, monkeypatch):
    monkeypatch.setattr(dsprites, "IMAGE_COUNT", 3_000)  # the whole file would be 3 GB
    pixels = sprite_renderer.render(np.arange(3_000))
    pixels[:, 0, 0] = 1  # a mark that no rendered image has
    np.savez_compressed(tmp_path / ORIGINAL, imgs=pixels)
    images = load_dataset(Shapes2D(), tmp_path)
    assert "original" in images.source
    decoded = images.batch(torch.arange(3_000))[:, 0].numpy().astype(np.uint8)
    assert decoded.tobytes() == pixels.tobytes()
    (tmp_path / ORIGINAL).write_bytes(b"PK broken")
    with pytest.raises(UserError, match="dSprites"):
        load_dataset(Shapes2D(images=50), tmp_path)


def test_small_shapes_are_every_second_pixel():
    small, large = (load_dataset(Shapes2D(size=size, images=40)) for size in (32, 64))
    indices = torch.arange(40)
    assert torch.equal(small.batch(indices), large.batch(indices)[:, :, ::2, ::2])
    assert small.factors.shape == (40, 5)
