"""User-supplied images, compared with Pillow and NumPy."""

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from photos import photos, pixels_of, save
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10, Images, from_dict, override, preset, to_dict
from controlvae.lab.data import cache
from controlvae.lab.data.dataset import BinaryImages, ByteImages
from controlvae.lab.data.images import numpy_files, user_images
from controlvae.lab.data.registry import load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


def test_folder_is_read_in_order_of_names(tmp_path):
    names = ["a/2.png", "a/10.webp", "b.bmp", "c.PNG"]
    path = save(tmp_path / "set", photos(4), names)
    (tmp_path / "set" / ".hidden.png").touch()
    (tmp_path / "set" / "notes.txt").touch()
    examples = load_dataset(Images(path))
    assert isinstance(examples, ByteImages)
    assert (examples.shape, examples.split) == ((3, 12, 10), "no held-out images")
    assert examples.source == f"{path}: 10x12 colour"
    np.testing.assert_array_equal(pixels_of(examples), photos(4)[[1, 0, 2, 3]])
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / "set" / name, name)
        archive.writestr(".hidden/5.png", b"")
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images("set.zip"), tmp_path)), pixels_of(examples)
    )


def test_linked_folders_are_read_without_cycles(tmp_path):
    save(tmp_path / "elsewhere", photos(1), ["a.png"])
    save(tmp_path / "set", photos(1, seed=1), ["z.png"])
    links = {"set/part": "elsewhere", "set/round": "set", "set/up": ".", "elsewhere/round": "set"}
    for link, place in links.items():
        (tmp_path / link).symlink_to(tmp_path / place)
    expected = np.concatenate([photos(1), photos(1, seed=1)])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("set"), tmp_path)), expected)


def test_grey_binary_and_transparent_images(tmp_path):
    grey = save(tmp_path / "grey", photos(2, channels=1), ["a.png", "b.png"])
    assert load_dataset(Images(grey)).shape == (1, 12, 10)
    save(tmp_path / "grey", photos(1), ["c.png"])  # one in colour
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images(grey)))[:2], photos(2, channels=1).repeat(3, axis=3)
    )
    bits = (photos(3, 8, 8, 1) > 127).astype(np.uint8) * 255
    binary = load_dataset(Images(save(tmp_path / "bits", bits, ["a.png", "b.png", "c.png"])))
    assert isinstance(binary, BinaryImages)
    np.testing.assert_array_equal(pixels_of(binary), bits)
    clear = photos(1, channels=4)
    clear[..., 3] = 0
    assert (
        pixels_of(load_dataset(Images(save(tmp_path / "clear", clear, ["a.png"])))) == 255
    ).all()


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_grey_is_rounded_to_8_bits(tmp_path, suffix):
    deep = np.random.default_rng(0).integers(0, 65536, (2, 12, 10), dtype=np.uint16)
    deep[0, 0, :2] = 0, 65535
    for name, image in zip("ab", deep, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.{suffix}")
    pixels = pixels_of(load_dataset(Images(str(tmp_path))))[..., 0]
    assert pixels[0, 0, :2].tolist() == [0, 255]
    assert np.abs(pixels / 255 - deep / 65535).max() <= 0.5 / 255 + 1e-9


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # to be turned clockwise
    Image.fromarray(photos(1)[0]).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images(str(tmp_path))))[0], np.rot90(photos(1)[0], -1)
    )


def test_images_of_several_sizes_need_a_size(tmp_path):
    wide, square = photos(1, 20, 40)[0], photos(1, 30, 30)[0]
    save(tmp_path / "set", [wide, square], ["a.png", "b.png"])
    with pytest.raises(UserError, match=r"a.png is 40x20, b.png is 30x30; set data.size"):
        load_dataset(Images("set"), tmp_path)
    cropped, stretched = (
        pixels_of(load_dataset(Images("set", 16, fit), tmp_path))[0] for fit in ("crop", "stretch")
    )
    expected = Image.fromarray(wide[:, 10:30]).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(cropped, expected)
    np.testing.assert_array_equal(
        stretched, Image.fromarray(wide).resize((16, 16), Image.Resampling.BILINEAR)
    )


def _make_broken_link(path):
    path.unlink()
    path.symlink_to("nowhere.png")


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"GIF89a?"),
        _make_broken_link,
    ],
)
def test_corrupt_image_is_reported_or_skipped(tmp_path, corrupt):
    save(tmp_path, photos(3), ["a.png", "b.png", "c.png"])
    corrupt(tmp_path / "b.png")
    (tmp_path / "t.csv").write_text("kind\n7\n8\n8\n")
    with pytest.raises(
        UserError, match=r"^b.png in .* cannot be read: .*; .*unreadable=skip[^\n]*$"
    ):
        load_dataset(Images(str(tmp_path)))
    examples = load_dataset(Images(str(tmp_path), factors="t.csv", unreadable="skip"))
    assert examples.source.endswith("unreadable (b.png)")
    assert "; 1 of 3 " in examples.source
    np.testing.assert_array_equal(pixels_of(examples), photos(3)[[0, 2]])
    assert examples.factors.tolist() == [[0], [1]]


def test_image_too_small_to_crop_is_reported_or_skipped(tmp_path):
    save(tmp_path / "set", [photos(1, 20, 20)[0], photos(1, 20, 9)[0]], ["a.png", "b.png"])
    with pytest.raises(
        UserError, match=r"^b.png .* it is 9x20, too small for fit=10; set a smaller data.fit, "
    ):
        load_dataset(Images("set", 8, 10), tmp_path)
    examples = load_dataset(Images("set", 8, 10, unreadable="skip"), tmp_path)
    assert (len(examples), examples.shape) == (1, (3, 8, 8))
    assert examples.source.endswith("too small for fit=10 (b.png)")
    assert "; 1 of 2 " in examples.source
    np.save(tmp_path / "x.npy", photos(2, 20, 9))
    with pytest.raises(UserError, match=r"x.npy are 9x20, too small for fit=10"):
        load_dataset(Images("x.npy", 8, 10), tmp_path)


def test_many_skipped_images_are_listed_in_a_file(tmp_path):
    save(tmp_path / "set", photos(1), ["a.png"])
    names = [f"b{number}.png" for number in range(7)]
    for name in names:
        (tmp_path / "set" / name).touch()
    source = load_dataset(Images("set", unreadable="skip"), tmp_path).source
    listed = re.search(
        r"7 of 8 .* \(b0.png, .*, b4.png and 2 more; .* (\S+)\)$",
        source,
    )
    assert Path(listed[1]).read_text().split() == names


# Arrays


@pytest.mark.parametrize("name", ["x.npy", "X.NPY", "x.npz", "large.npz"])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (photos(5), photos(5)),
        (photos(5).transpose(0, 3, 1, 2), photos(5)),
        (photos(5, channels=1)[..., 0], photos(5, channels=1)),
        (photos(5, 4, 4, 1)[..., 0], photos(5, 4, 4, 1)),
        (np.asfortranarray(photos(5)), photos(5)),
        (photos(5) / 255, photos(5)),
        ((photos(5) / 255).astype(np.float16), photos(5)),
        (photos(5, 8, 8, 3) > 99, (photos(5, 8, 8, 3) > 99) * 255),
        ((photos(5, 8, 8, 1) > 99).astype(np.uint8), (photos(5, 8, 8, 1) > 99) * 255),
        ((photos(5, 8, 8, 1) > 99).astype(float)[..., 0], (photos(5, 8, 8, 1) > 99) * 255),
        ((photos(5, 3, 3, 1) > 99), (photos(5, 3, 3, 1) > 99) * 255),
    ],
    ids=[
        "NHWC",
        "NCHW",
        "NHW",
        "N44",
        "Fortran",
        "float",
        "half",
        "bool",
        "0-1",
        "0.0-1.0",
        "9-pixels",
    ],
)
def test_arrays_of_every_layout(tmp_path, monkeypatch, name, stored, expected):
    if name == "large.npz":  # unpacked into the cache, in several blocks
        monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 0)
        monkeypatch.setattr(numpy_files, "_CHUNK_BYTES", 64)
    with (tmp_path / name).open("wb") as file:
        np.savez(file, imgs=stored, labels=np.arange(5)) if name.endswith("npz") else np.save(
            file, stored
        )
    examples = load_dataset(Images(name), tmp_path)
    np.testing.assert_array_equal(pixels_of(examples), expected)
    two_valued = len(np.unique(expected)) == 2 and expected[0].size % 8 == 0
    assert isinstance(examples, BinaryImages if two_valued else ByteImages)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (photos(2) / 100, r"from 0 to 2\.\d+; .*\[0, 1\]"),
        (np.full((2, 4, 4), np.nan), "nan"),
        (photos(2).astype(int), "int64.*uint8"),
        (photos(2)[0, 0], "has shape"),
        (photos(2)[0], r"has shape \(12, 10, 3\).*array\[None\]"),
        (photos(2, channels=4)[0] / 255, r"array\[None\]"),
        (photos(2, channels=1)[0], r"array\[None\]"),
        (np.array([{}]), "cannot be read"),
    ],
)
def test_arrays_that_are_not_images_raise(tmp_path, stored, message):
    np.save(tmp_path / "x.npy", stored, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        load_dataset(Images("x.npy"), tmp_path)


def test_array_is_resized_like_an_image_file(tmp_path):
    np.save(tmp_path / "x.npy", photos(2, 20, 20) / 255)
    expected = np.stack(
        [Image.fromarray(p).resize((8, 8), Image.Resampling.BILINEAR) for p in photos(2, 20, 20)]
    )
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("x.npy", 8), tmp_path)), expected)


def test_byte_array_is_memory_mapped_in_place(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", photos(50))
    monkeypatch.setattr(user_images, "cached_array", None)  # nothing is copied
    examples = load_dataset(Images("x.npy"), tmp_path)
    np.testing.assert_array_equal(pixels_of(examples), photos(50))
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / "x.npy") in Path("/proc/self/maps").read_text()
    examples.rows.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), photos(50))


def test_one_of_several_arrays_must_be_named(tmp_path):
    np.savez(tmp_path / "x.npz", train=photos(4), test=photos(2, seed=1))
    with pytest.raises(UserError, match="2 arrays"):
        load_dataset(Images("x.npz"), tmp_path)
    with pytest.raises(UserError, match="did you mean 'test'"):
        load_dataset(Images("x.npz:tset"), tmp_path)
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images("x.npz:test"), tmp_path)), photos(2, seed=1)
    )
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("README.txt", "where they come from")
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images("x.npz:test"), tmp_path)), photos(2, seed=1)
    )


def test_splits_are_disjoint_and_complete(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint8).reshape(100, 1, 1) + 100)
    np.savez(tmp_path / "f.npz", half=np.arange(100) // 2)
    train, test = (
        load_dataset(Images("x.npy", factors="f.npz", held_out=0.2, split=p), tmp_path)
        for p in ("train", "test")
    )
    assert (train.split, test.split) == ("train: 80 of 100", "test: 20 of 100 held out")
    numbers = [pixels_of(part).ravel().astype(int) - 100 for part in (train, test)]
    assert sorted(np.concatenate(numbers)) == list(range(100))
    assert max(numbers[1]) - min(numbers[1]) > 50  # spread over the whole file
    np.testing.assert_array_equal(test.factors[:, 0], numbers[1] // 2)
    some = load_dataset(Images("x.npy", held_out=0.2, images=7), tmp_path)
    assert len(some) == 7
    assert set(pixels_of(some).ravel()) < set(pixels_of(train).ravel())
    with pytest.raises(UserError, match=r"images=90 .*80"):
        load_dataset(Images("x.npy", held_out=0.2, images=90), tmp_path)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("2024", "2024"),
        ("faces (1)", "faces (1)"),
        ("a,b", "a,b"),
        ("a#b", "a#b"),
        ("none", "none"),
        ("'a b'", "a b"),
    ],
)
def test_folder_may_have_any_name(given, path):
    assert override(preset("images"), [f"data.path={given}"]).data.path == path


def test_images_are_set_by_overrides():
    experiment = override(
        preset("shapes2d-quick"), ['data=Images("my/folder", size=64, held_out=0.1)']
    )
    assert experiment.data == Images("my/folder", 64, held_out=0.1)
    assert from_dict(type(experiment), to_dict(experiment)) == experiment
    assert (
        override(experiment, ["data.split=test", "data.factors=t.csv:a,b"]).data.factors
        == "t.csv:a,b"
    )
    assert override(experiment, ["data=CIFAR10(64)"]).data == CIFAR10(64)
    save(Path("x"), photos(2), ["a.png", "b.png"])
    with pytest.raises(UserError, match="held_out"):
        load_dataset(Images("x", split="test"))
