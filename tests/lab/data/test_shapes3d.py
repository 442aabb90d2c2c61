"""3D Shapes: composed images, subsets and sizes, and the original file."""

import builtins
import sys

import numpy as np
import pytest
import torch

from controlvae.errors import UserError
from controlvae.lab.config import Shapes3D
from controlvae.lab.data import room_renderer as room
from controlvae.lab.data import shapes3d
from controlvae.lab.data.composed_images import ComposedImages
from controlvae.lab.data.dataset import ByteImages, ImageDataset
from controlvae.lab.data.registry import dataset_specs, load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Load all images once, with a cache of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTROLVAE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CONTROLVAE_DATA", str(tmp_path_factory.mktemp("none")))
        yield load_dataset(Shapes3D(size=32))


def test_set_is_the_published_one_in_its_order(images):
    assert isinstance(images, ComposedImages)
    assert len(images) == 480_000
    assert images.shape == (3, 32, 32)
    assert dict(zip(images.factor_names, images.factors.max(axis=0) + 1, strict=True)) == {
        "floor_hue": 10,
        "wall_hue": 10,
        "object_hue": 10,
        "scale": 8,
        "shape": 4,
        "orientation": 15,
    }
    # Orientation varies fastest, floor hue slowest.
    assert images.factors[[0, 1, 15, 48_000]].tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 0],
    ]


def test_composing_equals_drawing_the_colours(images):
    """An image whose rays are coloured, clipped and filtered one by one is the sum of layers."""
    factors = np.array([1, 6, 8, 5, 3, 11])
    scene = room.Scene()
    view = room.look(scene, factors[5], 4)
    part, shade, gloss = room.draw(scene, view, factors[4], room.SCALES[factors[3]])
    colours = np.zeros((4, 3))
    for row, hue in enumerate(factors[:3], start=1):
        colours[row] = room.hue_channels()[hue] / 5
    rays = np.minimum(colours[part] * shade[:, None] + gloss[:, None], 1)
    rays[part == 0] = room.SKY
    kernel = room.resampling_kernel(4, 32)
    plain = np.einsum("yi,ijc,xj->yxc", kernel, rays.reshape(256, 256, 3), kernel).clip(0, 1)
    index = np.ravel_multi_index(factors, room.FACTOR_SIZES)
    composed = images.batch(torch.tensor([index]))[0].permute(1, 2, 0).numpy()
    assert np.abs(composed - plain).max() <= 0.6 / 255


def test_hue_of_a_part_changes_no_other_part(images):
    base = np.array([3, 5, 2, 0, 1, 7])
    for column, rows in ((0, slice(0, 14)), (1, slice(28, 32))):
        other = base.copy()
        other[column] = 8
        pair = np.ravel_multi_index(np.stack([base, other]).T, room.FACTOR_SIZES)
        first, second = images.batch(torch.from_numpy(pair))
        assert not first.equal(second)
        assert first[:, rows].equal(second[:, rows])


def test_subset_holds_the_same_images(images):
    few = load_dataset(Shapes3D(size=32, images=300))
    indices = np.ravel_multi_index(few.factors.T, room.FACTOR_SIZES)
    assert len(np.unique(indices)) == 300
    assert few.batch(torch.arange(300)).equal(images.batch(torch.from_numpy(indices)))
    assert few.fingerprint() != images.fingerprint()


def test_run_folder_keeps_the_shape_of_images(images):
    empty = ImageDataset.from_metadata(images.metadata(), "missing")
    assert isinstance(empty, ByteImages)
    assert empty.shape == images.shape


@pytest.fixture
def original(tmp_path, monkeypatch):
    """Write a file of the original's form with the first 6,000 images, marked in one corner."""
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(shapes3d, "IMAGE_COUNT", 6_000)
    pixels = np.random.default_rng(1).integers(0, 256, (6_000, 64, 64, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "3dshapes.h5", "w") as file:
        file["images"] = pixels
    return tmp_path, pixels


def test_original_file_replaces_the_renderer(original):
    folder, pixels = original
    loaded = load_dataset(Shapes3D(), folder)
    assert loaded.source == "the original file 3dshapes.h5"
    expected = torch.from_numpy(pixels[[0, 4_095, 4_096, 5_999]]).permute(0, 3, 1, 2) / 255
    assert loaded.batch(torch.tensor([0, 4_095, 4_096, 5_999])).equal(expected)
    few = load_dataset(Shapes3D(images=50), folder)
    indices = np.ravel_multi_index(few.factors.T, room.FACTOR_SIZES)
    assert few.rows.numpy().reshape(50, 64, 64, 3).tobytes() == pixels[indices].tobytes()
    small = load_dataset(Shapes3D(size=32, images=50), folder).batch(torch.arange(50))
    mean = torch.nn.functional.avg_pool2d(few.batch(torch.arange(50)), 2)
    assert (small - mean).abs().max() <= 0.51 / 255
    assert dataset_specs()["shapes3d"].describe_files(folder) == str(folder / "3dshapes.h5")


def test_damaged_file_and_missing_package_are_one_line(original, monkeypatch):
    folder, _ = original
    file = folder / "3dshapes.h5"
    file.write_bytes(file.read_bytes()[:-1_000_000])
    with pytest.raises(UserError, match=r"3dshapes\.h5 cannot be read as 3D Shapes") as error:
        load_dataset(Shapes3D(), folder)
    assert "\n" not in str(error.value)
    file.write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="cannot be read as 3D Shapes"):
        load_dataset(Shapes3D(images=9), folder)
    real_import = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("h5py"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'controlvae\[shapes3d\]'"):
        load_dataset(Shapes3D(images=9), folder)


def test_file_with_other_content_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "3dshapes.h5", "w") as file:
        file["images"] = np.zeros((3, 64, 64, 3), np.uint8)
    with pytest.raises(UserError, match="480000, 64, 64, 3"):
        load_dataset(Shapes3D(images=9), tmp_path)
    with h5py.File(tmp_path / "3dshapes.h5", "w") as file:
        file["labels"] = np.zeros(3)
    with pytest.raises(UserError, match="images"):
        load_dataset(Shapes3D(images=9), tmp_path)
