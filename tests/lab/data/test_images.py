"""CIFAR-10 and a user's own pictures, against Pillow, NumPy, torch and the published numbers."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from command import within
from photos import photos, save
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10, CelebA, Images, from_dict, override, preset, to_dict
from controlvae.lab.data import cache, celeba, cifar10
from controlvae.lab.data.dataset import BinaryImages, ByteImages
from controlvae.lab.data.images import image_files as check_image_files
from controlvae.lab.data.images import numpy_files as arrays
from controlvae.lab.data.images import user_images as images
from controlvae.lab.data.registry import DATASETS, describe_dataset, held_out_settings, load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


PUBLISHED = Path(os.environ.get("CONTROLVAE_DATA", "data")).absolute()


@pytest.fixture
def published():
    if not (PUBLISHED / "cifar10" / "cifar10_test.npz").is_file():
        pytest.skip(f"no CIFAR-10 in {PUBLISHED}; CONTROLVAE_DATA names the data folder")
    return PUBLISHED


def pixels_of(examples):
    """Back to (count, height, width, channels) uint8."""
    return (
        (examples.batch(torch.arange(len(examples))) * 255)
        .round()
        .byte()
        .permute(0, 2, 3, 1)
        .numpy()
    )


# CIFAR-10


def test_cifar10_has_its_published_means(published):
    rows = load_dataset(CIFAR10(size=32), published).rows.view(-1, 3)
    assert len(rows) == 50_000 * 1024
    means = rows.sum(0, dtype=torch.int64).double() / len(rows) / 255
    np.testing.assert_allclose(means, (0.49139968, 0.48215841, 0.44653091), atol=5e-9)


def test_cifar10_is_made_larger_with_half_pixel_centres(published):
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


def test_half_a_training_set_is_refused(tmp_path):
    (tmp_path / "cifar10_train_part1.npz").touch()
    with pytest.raises(UserError, match=r"part2.npz is missing"):
        load_dataset(CIFAR10(), tmp_path)
    with pytest.raises(UserError, match=r"no CIFAR-10 test set .* cifar-10-python.tar.gz"):
        load_dataset(CIFAR10(split="test"), tmp_path)


def published_pickle(pixels):
    """As the published files: NumPy's old module name, keys of bytes, channels one after another."""
    content = {
        b"batch_label": b"testing",
        b"data": pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1),
    }
    return pickle.dumps(content, protocol=3).replace(
        b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    )


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_the_python_version_is_read(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(cifar10.COUNTS, "train", 10)
    pixels = photos(10, 32, 32)
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    for number, name in enumerate(cifar10.BATCHES["train"]):
        (folder / name).write_bytes(published_pickle(pixels[2 * number : 2 * number + 2]))
    if kind == "tar":
        with tarfile.open(tmp_path / cifar10.TAR, "w:gz") as archive:
            for name in reversed(cifar10.BATCHES["train"]):
                archive.add(folder / name, f"{cifar10.FOLDER}/{name}")
                (folder / name).unlink()
    np.testing.assert_array_equal(pixels_of(load_dataset(CIFAR10(size=32), tmp_path)), pixels)
    enlarged = np.stack(
        [Image.fromarray(picture).resize((64, 64), Image.Resampling.BILINEAR) for picture in pixels]
    )
    np.testing.assert_array_equal(pixels_of(load_dataset(CIFAR10(size=64), tmp_path)), enlarged)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("key", [b"data", "data"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_that_were_pickled_again_are_read(protocol, key, order):
    pixels = photos(4, 32, 32)
    rows = np.asarray(pixels.transpose(0, 3, 1, 2).reshape(4, -1), order=order)
    content = pickle.dumps({key: rows, b"labels": list(np.arange(4))}, protocol=protocol)
    np.testing.assert_array_equal(cifar10.read_batch(content), pixels)


@pytest.mark.parametrize(
    "content", [7, None, "data", {b"data": [1, 2]}, {b"data": np.dtype("u1")}, {b"labels": [1]}]
)
def test_a_pickle_of_something_else_is_refused(content):
    with pytest.raises(ValueError, match="it holds no array named data"):
        cifar10.read_batch(pickle.dumps(content))


def test_a_pickle_runs_nothing(tmp_path):
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


# CelebA


def faces(folder, kind):
    """Six faces as published, in the parts 0 0 0 1 2 2."""
    pixels, names = photos(6, 218, 178), [f"{number:06d}.jpg" for number in range(1, 7)]
    save(folder / "img_align_celeba", pixels, names)
    files = [folder / "img_align_celeba" / name for name in names]
    decoded = [Image.open(file).convert("RGB") for file in files]
    parts = "".join(f"{name} {part}\n" for name, part in zip(names, "000122", strict=True))
    (folder / celeba.PARTITIONS[0]).write_text(parts)
    if kind == "zip":
        with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
            for file in files:
                archive.write(file, f"img_align_celeba/{file.name}")
                file.unlink()
        (folder / "img_align_celeba").rmdir()
    return decoded


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_celeba_is_divided_officially_and_squeezed_or_cropped(tmp_path, kind):
    (tmp_path / "celeba").mkdir()
    pictures = faces(tmp_path / "celeba", kind)
    train = load_dataset(CelebA(), tmp_path)
    assert (len(train), train.shape, train.split) == (3, (3, 128, 128), "the training set")
    squeezed = [
        np.asarray(picture.resize((128, 128), Image.Resampling.BILINEAR)) for picture in pictures
    ]
    np.testing.assert_array_equal(pixels_of(train), squeezed[:3])
    np.testing.assert_array_equal(
        pixels_of(load_dataset(CelebA(split="valid"), tmp_path)), squeezed[3:4]
    )
    middle = [
        picture.crop((15, 35, 163, 183)).resize((64, 64), Image.Resampling.BILINEAR)
        for picture in pictures
    ]
    cropped = load_dataset(held_out_settings(CelebA(64, fit=148)), tmp_path)
    np.testing.assert_array_equal(pixels_of(cropped), np.stack(middle)[4:])
    assert "the middle 148x148" in cropped.source


def test_of_a_validation_part_no_more_are_counted_than_it_has(tmp_path):
    faces(tmp_path, "folder")
    sets = [
        "data=CelebA(16)",
        "model.channels=4,4",
        "training.batch=2",
        "training.steps=1",
        "training.log_every=1",
        "training.validation=500",
    ]
    words = [
        "train",
        "celeba-vae",
        "--device",
        "cpu",
        "--data-root",
        ".",
        *(f"--set={text}" for text in sets),
    ]
    looked_at = within(*words, "--set=training.validate_every=1", cwd=tmp_path)
    assert (
        "3 examples of 3x16x16, 1 of 1 in its validation part for validation\n" in looked_at.stderr
    )
    never = within(*words, "--set=training.validate_every=0", cwd=tmp_path)
    assert (
        "3x16x16, its validation part for validation, never looked at: set training.validate_every\n"
        in never.stderr
    )


def test_celeba_without_its_partition_or_with_another_is_refused(tmp_path):
    faces(tmp_path, "folder")
    with (tmp_path / celeba.PARTITIONS[0]).open("a") as table:
        table.write("000007.jpg 2\n")
    with pytest.raises(UserError, match=r"000007.jpg is missing in the pictures"):
        load_dataset(CelebA(), tmp_path)
    (tmp_path / celeba.PARTITIONS[0]).unlink()
    with pytest.raises(UserError, match=r"no list_eval_partition.txt beside it"):
        load_dataset(CelebA(), tmp_path)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_faces_that_are_damaged_or_missing_are_named_or_left_out(tmp_path, kind, monkeypatch):
    pictures = faces(tmp_path, "folder")
    (tmp_path / "img_align_celeba" / "000002.jpg").write_bytes(b"no")
    with (tmp_path / celeba.PARTITIONS[0]).open("a") as table:
        table.write("000007.jpg 0\n")
    if kind == "zip":
        shutil.make_archive(str(tmp_path / "img_align_celeba"), "zip", tmp_path, "img_align_celeba")
        shutil.rmtree(tmp_path / "img_align_celeba")
    train = load_dataset(CelebA(fit=148, unreadable="skip"), tmp_path)
    assert re.search(
        r"; 2 of 4 left out as unreadable \((img_align_celeba/)?000002.jpg, 000007.jpg\)$",
        train.source,
    )
    middle = [pictures[index].crop((15, 35, 163, 183)) for index in (0, 2)]
    squeezed = [
        np.asarray(picture.resize((128, 128), Image.Resampling.BILINEAR)) for picture in middle
    ]
    np.testing.assert_array_equal(pixels_of(train), squeezed)
    assert (
        "left out"
        not in load_dataset(held_out_settings(CelebA(unreadable="skip")), tmp_path).source
    )
    monkeypatch.setattr(
        check_image_files, "_MANY", 0
    )  # sizes are worth keeping: those of each part
    parts = [CelebA(split=split, unreadable="skip") for split in ("train", "valid", "test")]
    for settings in parts:
        load_dataset(settings, tmp_path)
    with monkeypatch.context() as looked_at:
        looked_at.setattr(check_image_files, "inspect_all", None)
        for settings in parts:
            load_dataset(settings, tmp_path)
    with pytest.raises(
        UserError, match=r"000007.jpg is missing in the pictures; .*unreadable=skip"
    ):
        load_dataset(CelebA(), tmp_path)
    table = tmp_path / celeba.PARTITIONS[0]
    table.write_text(table.read_text().replace("000007.jpg 0\n", ""))
    with pytest.raises(
        UserError, match=r"000002.jpg in .* cannot be read: not a picture; .*unreadable=skip"
    ):
        load_dataset(CelebA(), tmp_path)
    with pytest.raises(UserError, match=r"000004.jpg in .*: it is 178x218, too small for fit=180"):
        load_dataset(CelebA(fit=180, split="valid"), tmp_path)


# Folders and archives of image files


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
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


def test_linked_folders_are_read_and_links_that_go_round_are_not(tmp_path):
    save(tmp_path / "elsewhere", photos(1), ["a.png"])
    save(tmp_path / "set", photos(1, seed=1), ["z.png"])
    links = {"set/part": "elsewhere", "set/round": "set", "set/up": ".", "elsewhere/round": "set"}
    for link, place in links.items():
        (tmp_path / link).symlink_to(tmp_path / place)
    expected = np.concatenate([photos(1), photos(1, seed=1)])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("set"), tmp_path)), expected)


def test_grey_black_and_white_and_transparent_pictures(tmp_path):
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
def test_grey_in_16_bits_is_rounded_to_8(tmp_path, suffix):
    deep = np.random.default_rng(0).integers(0, 65536, (2, 12, 10), dtype=np.uint16)
    deep[0, 0, :2] = 0, 65535
    for name, picture in zip("ab", deep, strict=True):
        Image.fromarray(picture).save(tmp_path / f"{name}.{suffix}")
    pixels = pixels_of(load_dataset(Images(str(tmp_path))))[..., 0]
    assert pixels[0, 0, :2].tolist() == [0, 255]
    assert np.abs(pixels / 255 - deep / 65535).max() <= 0.5 / 255 + 1e-9


def test_a_camera_held_sideways(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turn clockwise to see it
    Image.fromarray(photos(1)[0]).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(
        pixels_of(load_dataset(Images(str(tmp_path))))[0], np.rot90(photos(1)[0], -1)
    )


def test_pictures_of_several_sizes_need_a_size(tmp_path):
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


def _link_to_nowhere(path):
    path.unlink()
    path.symlink_to("nowhere.png")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"GIF89a?"),
        _link_to_nowhere,
    ],
)
def test_a_damaged_picture_is_named_or_left_out(tmp_path, damage):
    save(tmp_path, photos(3), ["a.png", "b.png", "c.png"])
    damage(tmp_path / "b.png")
    (tmp_path / "t.csv").write_text("kind\n7\n8\n8\n")
    with pytest.raises(
        UserError, match=r"^b.png in .* cannot be read: .*; .*unreadable=skip[^\n]*$"
    ):
        load_dataset(Images(str(tmp_path)))
    examples = load_dataset(Images(str(tmp_path), factors="t.csv", unreadable="skip"))
    assert examples.source.endswith("1 of 3 left out as unreadable (b.png)")
    np.testing.assert_array_equal(pixels_of(examples), photos(3)[[0, 2]])
    assert examples.factors.tolist() == [[0], [1]]


def test_a_picture_too_small_to_crop_is_named_or_left_out(tmp_path):
    save(tmp_path / "set", [photos(1, 20, 20)[0], photos(1, 20, 9)[0]], ["a.png", "b.png"])
    with pytest.raises(
        UserError, match=r"^b.png .* it is 9x20, too small for fit=10; set a smaller data.fit, "
    ):
        load_dataset(Images("set", 8, 10), tmp_path)
    examples = load_dataset(Images("set", 8, 10, unreadable="skip"), tmp_path)
    assert (len(examples), examples.shape) == (1, (3, 8, 8))
    assert examples.source.endswith("1 of 2 left out as too small for fit=10 (b.png)")
    np.save(tmp_path / "x.npy", photos(2, 20, 9))
    with pytest.raises(UserError, match=r"x.npy are 9x20, too small for fit=10"):
        load_dataset(Images("x.npy", 8, 10), tmp_path)


def test_of_many_pictures_left_out_a_file_has_all_names(tmp_path):
    save(tmp_path / "set", photos(1), ["a.png"])
    names = [f"b{number}.png" for number in range(7)]
    for name in names:
        (tmp_path / "set" / name).touch()
    source = load_dataset(Images("set", unreadable="skip"), tmp_path).source
    listed = re.search(
        r"7 of 8 left out as unreadable \(b0.png, .*, b4.png and 2 more; all of them are in (.*)\)$",
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
        monkeypatch.setattr(cache, "_WORTH", 0)
        monkeypatch.setattr(arrays, "_CHUNK_BYTES", 64)
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
        (photos(2) / 100, r"values from 0 to 2\.\d+; floats must lie in \[0, 1\]"),
        (np.full((2, 4, 4), np.nan), "nan"),
        (photos(2).astype(int), "holds int64; pictures are uint8"),
        (photos(2)[0, 0], "has shape"),
        (photos(2)[0], r"has shape \(12, 10, 3\), one picture by its looks; give it a first axis"),
        (photos(2, channels=4)[0] / 255, r"one picture by its looks"),
        (photos(2, channels=1)[0], r"one picture by its looks"),
        (np.array([{}]), "cannot be read as pictures"),
    ],
)
def test_arrays_that_are_not_pictures(tmp_path, stored, message):
    np.save(tmp_path / "x.npy", stored, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        load_dataset(Images("x.npy"), tmp_path)


def test_an_array_is_resized_as_a_picture_is(tmp_path):
    np.save(tmp_path / "x.npy", photos(2, 20, 20) / 255)
    expected = np.stack(
        [Image.fromarray(p).resize((8, 8), Image.Resampling.BILINEAR) for p in photos(2, 20, 20)]
    )
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("x.npy", 8), tmp_path)), expected)


def test_bytes_are_used_where_they_lie(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", photos(50))
    monkeypatch.setattr(images, "cached_array", None)  # nothing is copied
    examples = load_dataset(Images("x.npy"), tmp_path)
    np.testing.assert_array_equal(pixels_of(examples), photos(50))
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / "x.npy") in Path("/proc/self/maps").read_text()
    examples.rows.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), photos(50))


def test_one_of_several_arrays_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", train=photos(4), test=photos(2, seed=1))
    with pytest.raises(UserError, match=r"2 arrays of pictures; name one"):
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


# What is kept on disk


def test_decoded_pictures_are_kept_until_their_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WORTH", 0)
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    first = load_dataset(Images(path))
    kept = list((tmp_path / "cache").iterdir())
    assert len(kept) == 1
    with monkeypatch.context() as context:
        context.setattr(images, "decode_all", None)
        np.testing.assert_array_equal(pixels_of(load_dataset(Images(path))), pixels_of(first))
    stat = (tmp_path / "set" / "b.png").stat()
    save(tmp_path / "set", photos(1, seed=9), ["b.png"])
    os.utime(
        tmp_path / "set" / "b.png", ns=(stat.st_atime_ns, stat.st_mtime_ns)
    )  # as some copying programs do
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path)))[1], photos(1, seed=9)[0])
    now = list((tmp_path / "cache").iterdir())
    assert len(now) == 1
    assert now != kept
    now[0].write_bytes(now[0].read_bytes()[:-1])  # damaged
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path)))[0], photos(3)[0])
    (tmp_path / "set" / "c.png").unlink()
    assert len(load_dataset(Images(path))) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_a_large_array_of_an_archive_is_mapped_from_the_cache(tmp_path, monkeypatch, write):
    monkeypatch.setattr(cache, "_WORTH", 1 << 20)
    monkeypatch.setattr(arrays, "_CHUNK_BYTES", 1 << 16)
    pixels, folder = photos(2_000, 32, 32), tmp_path / "cache"
    write(tmp_path / "x.npz", imgs=pixels)
    load_dataset(Images("x.npz", images=1), tmp_path)  # what is imported takes memory, too
    shutil.rmtree(folder)
    tracemalloc.start()
    examples = load_dataset(Images("x.npz"), tmp_path)
    assert tracemalloc.get_traced_memory()[1] < pixels.nbytes / 4
    tracemalloc.stop()
    np.testing.assert_array_equal(pixels_of(examples), pixels)
    (file,) = folder.iterdir()
    with monkeypatch.context() as context:
        context.setattr(np, "frombuffer", None)  # nothing is unpacked again
        np.testing.assert_array_equal(load_dataset(Images("x.npz"), tmp_path).rows, examples.rows)
    write(tmp_path / "x.npz", imgs=pixels[::-1])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("x.npz"), tmp_path)), pixels[::-1])
    assert list(folder.iterdir()) != [file]
    assert len(list(folder.iterdir())) == 1


def test_a_damaged_archive_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WORTH", 0)
    np.savez(tmp_path / "x.npz", imgs=photos(100))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"x.npz cannot be read as pictures: Bad CRC[^\n]*$"):
        load_dataset(Images("x.npz"), tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_left_in_the_cache_is_cleared_away(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WORTH", 0)
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    (tmp_path / "cache").mkdir()
    left, count_active = (
        tmp_path / "cache" / f"{cache._UNFINISHED}{name}" for name in ("left", "in-use")
    )
    for file, age in ((left, 3_600), (count_active, 0)):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age,) * 2)
    load_dataset(Images(path))
    assert (left.exists(), count_active.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WORTH", 0)
    (tmp_path / "cache").write_text("a file where a folder should be")
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path))), photos(3))


# Parts, settings


def test_parts_share_nothing_and_leave_nothing_out(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint8).reshape(100, 1, 1) + 100)
    np.savez(tmp_path / "f.npz", half=np.arange(100) // 2)
    train, test = (
        load_dataset(Images("x.npy", factors="f.npz", held_out=0.2, split=p), tmp_path)
        for p in ("train", "test")
    )
    assert (train.split, test.split) == ("train: 80 of 100", "test: 20 of 100 held out")
    numbers = [pixels_of(part).ravel().astype(int) - 100 for part in (train, test)]
    assert sorted(np.concatenate(numbers)) == list(range(100))
    assert max(numbers[1]) - min(numbers[1]) > 50  # not the first or the last ones
    np.testing.assert_array_equal(test.factors[:, 0], numbers[1] // 2)
    some = load_dataset(Images("x.npy", held_out=0.2, images=7), tmp_path)
    assert len(some) == 7
    assert set(pixels_of(some).ravel()) < set(pixels_of(train).ravel())
    with pytest.raises(UserError, match="more pictures than there are: 80"):
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
def test_a_folder_may_be_called_anything(given, path):
    assert override(preset("pictures"), [f"data.path={given}"]).data.path == path


def test_pictures_are_set_from_the_command_line():
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


def test_every_data_set_says_what_it_needs_and_what_was_found(tmp_path):
    assert all(describe_dataset(name, tmp_path).found.endswith("no file") for name in DATASETS)
    save(tmp_path / "faces", photos(1), ["a.png"])
    (tmp_path / "cifar10_test.npz").touch()
    assert describe_dataset("images", tmp_path).found.startswith(str(tmp_path / "faces"))
    assert (
        describe_dataset("cifar10", tmp_path).found
        == f"train: no file; test: {tmp_path / 'cifar10_test.npz'}"
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_the_first_faces_are_halved_into_one_file_that_is_read_like_any_other(tmp_path, zipped):
    faces, script = (
        tmp_path / "img_align_celeba",
        Path(__file__).parents[3] / "examples" / "first_faces.py",
    )
    faces.mkdir()
    for number in range(1, 5):
        Image.new("RGB", (178, 218), (40 * number, 0, 0)).save(
            faces / f"{number:06d}.jpg", quality=95
        )
    given = shutil.make_archive(str(faces), "zip", tmp_path, faces.name) if zipped else faces
    words = [sys.executable, str(script), "--count", "3", "--out", str(tmp_path)]
    subprocess.run([*words, str(given)], check=True)
    found = load_dataset(Images(str(tmp_path / "celeba_10k_89x109.npz")))
    assert (len(found), found.shape) == (3, (3, 109, 89))
    means = found.batch(torch.arange(3)).mean((2, 3))
    assert torch.allclose(means[:, 0], torch.tensor([40.0, 80.0, 120.0]) / 255, atol=0.01)
    (tmp_path / "no.zip").write_text("no")
    refused = subprocess.run(
        [*words, str(tmp_path / "no.zip")], check=False, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "no folder and no zip archive" in refused.stderr
