"""CIFAR-10: its published numbers, all of its file formats, and its restricted pickle reader."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import photos, pixels_of
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10
from controlvae.lab.data import cifar10
from controlvae.lab.data.cifar10_pickle import read_pickled_batch
from controlvae.lab.data.registry import load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


PUBLISHED = Path(os.environ.get("CONTROLVAE_DATA", "data")).absolute()


@pytest.fixture
def published():
    if not (PUBLISHED / "cifar10" / "cifar10_test.npz").is_file():
        pytest.skip(f"no CIFAR-10 in {PUBLISHED}; CONTROLVAE_DATA names the data folder")
    return PUBLISHED


def test_cifar10_has_its_published_means(published):
    rows = load_dataset(CIFAR10(size=32), published).rows.view(-1, 3)
    assert len(rows) == 50_000 * 1024
    means = rows.sum(0, dtype=torch.int64).double() / len(rows) / 255
    np.testing.assert_allclose(means, (0.49139968, 0.48215841, 0.44653091), atol=5e-9)


def test_cifar10_is_enlarged_with_half_pixel_centres(published):
    small, large = (
        load_dataset(CIFAR10(size, "test", images=200), published) for size in (32, 128)
    )
    assert (large.shape, large.split) == ((3, 128, 128), "the test set")
    every = torch.arange(200)
    expected = torch.nn.functional.interpolate(
        small.batch(every), scale_factor=4, mode="bilinear", align_corners=False
    )
    # Pillow rounds after each of the two axes.
    assert (large.batch(every) - expected).abs().max() <= 1.01 / 255


def test_incomplete_training_set_raises(tmp_path):
    (tmp_path / "cifar10_train_part1.npz").touch()
    with pytest.raises(UserError, match=r"part2.npz is missing"):
        load_dataset(CIFAR10(), tmp_path)
    with pytest.raises(UserError, match=r"no CIFAR-10 test set .* cifar-10-python.tar.gz"):
        load_dataset(CIFAR10(split="test"), tmp_path)


def published_pickle(pixels):
    """Pickle as published: NumPy's old module name, keys of bytes, channels first."""
    content = {
        b"batch_label": b"testing",
        b"data": pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1),
    }
    return pickle.dumps(content, protocol=3).replace(
        b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    )


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_python_version_is_read(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(cifar10.COUNTS, "train", 10)
    pixels = photos(10, 32, 32)
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    for number, name in enumerate(cifar10.PICKLES["train"]):
        (folder / name).write_bytes(published_pickle(pixels[2 * number : 2 * number + 2]))
    if kind == "tar":
        with tarfile.open(tmp_path / cifar10.TAR, "w:gz") as archive:
            for name in reversed(cifar10.PICKLES["train"]):
                archive.add(folder / name, f"{cifar10.FOLDER}/{name}")
                (folder / name).unlink()
    np.testing.assert_array_equal(pixels_of(load_dataset(CIFAR10(size=32), tmp_path)), pixels)
    enlarged = np.stack(
        [Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR) for image in pixels]
    )
    np.testing.assert_array_equal(pixels_of(load_dataset(CIFAR10(size=64), tmp_path)), enlarged)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("key", [b"data", "data"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_of_any_pickle_protocol_are_read(protocol, key, order):
    pixels = photos(4, 32, 32)
    rows = np.asarray(pixels.transpose(0, 3, 1, 2).reshape(4, -1), order=order)
    content = pickle.dumps({key: rows, b"labels": list(np.arange(4))}, protocol=protocol)
    np.testing.assert_array_equal(read_pickled_batch(content), pixels)


@pytest.mark.parametrize(
    "content", [7, None, "data", {b"data": [1, 2]}, {b"data": np.dtype("u1")}, {b"labels": [1]}]
)
def test_pickle_without_images_raises(content):
    with pytest.raises(ValueError, match="it holds no array named data"):
        read_pickled_batch(pickle.dumps(content))


def test_pickle_that_reserves_memory_is_refused():
    """The unpickler would allocate 12 GB for the number under which this stores an object."""
    content = pickle.PROTO + b"\x02" + pickle.NONE + pickle.LONG_BINPUT
    content += (779_428_465).to_bytes(4, "little") + pickle.STOP
    with pytest.raises(pickle.UnpicklingError, match="under the number 779428465"):
        read_pickled_batch(content)


def test_pickle_executes_nothing(tmp_path):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    (tmp_path / cifar10.FOLDER).mkdir()
    (tmp_path / cifar10.FOLDER / "test_batch").write_bytes(
        pickle.dumps({b"data": Malicious()}, protocol=3)
    )
    with pytest.raises(UserError, match=r"test_batch in .* asks for (posix|nt).mkdir"):
        load_dataset(CIFAR10(split="test"), tmp_path)
    assert not (tmp_path / "run").exists()
