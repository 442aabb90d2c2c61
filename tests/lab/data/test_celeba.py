"""CelebA: its official splits, and faces that are corrupt or missing."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from command import within
from photos import photos, pixels_of, save
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.config import CelebA, Images
from controlvae.lab.data import celeba
from controlvae.lab.data.images import image_files
from controlvae.lab.data.registry import held_out_settings, load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


def faces(folder, kind):
    """Save six faces as published, in splits 0 0 0 1 2 2."""
    pixels, names = photos(6, 218, 178), [f"{number:06d}.jpg" for number in range(1, 7)]
    save(folder / "img_align_celeba", pixels, names)
    files = [folder / "img_align_celeba" / name for name in names]
    decoded = [Image.open(file).convert("RGB") for file in files]
    parts = "".join(f"{name} {part}\n" for name, part in zip(names, "000122", strict=True))
    (folder / celeba.PARTITION_FILES[0]).write_text(parts)
    if kind == "zip":
        with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
            for file in files:
                archive.write(file, f"img_align_celeba/{file.name}")
                file.unlink()
        (folder / "img_align_celeba").rmdir()
    return decoded


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_celeba_splits_and_resizing(tmp_path, kind):
    (tmp_path / "celeba").mkdir()
    images = faces(tmp_path / "celeba", kind)
    train = load_dataset(CelebA(), tmp_path)
    assert (len(train), train.shape, train.split) == (3, (3, 128, 128), "the training set")
    stretched = [
        np.asarray(image.resize((128, 128), Image.Resampling.BILINEAR)) for image in images
    ]
    np.testing.assert_array_equal(pixels_of(train), stretched[:3])
    np.testing.assert_array_equal(
        pixels_of(load_dataset(CelebA(split="valid"), tmp_path)), stretched[3:4]
    )
    middle = [
        image.crop((15, 35, 163, 183)).resize((64, 64), Image.Resampling.BILINEAR)
        for image in images
    ]
    cropped = load_dataset(held_out_settings(CelebA(64, fit=148)), tmp_path)
    np.testing.assert_array_equal(pixels_of(cropped), np.stack(middle)[4:])
    assert "the middle 148x148" in cropped.source


def test_validation_split_limits_validation_count(tmp_path):
    faces(tmp_path, "folder")
    sets = [
        "data=CelebA(16)",
        "model.channels=4,4",
        "training.batch=2",
        "training.steps=1",
        "training.log_every=1",
        "training.validation=500",
    ]
    command = [
        "train",
        "celeba-vae",
        "--device",
        "cpu",
        "--data-root",
        ".",
        *(f"--set={text}" for text in sets),
    ]
    validated = within(*command, "--set=training.validate_every=1", cwd=tmp_path)
    assert "3 examples of 3x16x16, 1 of 1 in its validation split" in validated.stderr
    never = within(*command, "--set=training.validate_every=0", cwd=tmp_path)
    assert "set training.validate_every" in never.stderr


def test_celeba_with_missing_or_wrong_partition_raises(tmp_path):
    faces(tmp_path, "folder")
    with (tmp_path / celeba.PARTITION_FILES[0]).open("a") as table:
        table.write("000007.jpg 2\n")
    with pytest.raises(UserError, match=r"000007.jpg"):
        load_dataset(CelebA(), tmp_path)
    (tmp_path / celeba.PARTITION_FILES[0]).unlink()
    with pytest.raises(UserError, match=r"list_eval_partition.txt"):
        load_dataset(CelebA(), tmp_path)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_corrupt_or_missing_faces_are_reported_or_skipped(tmp_path, kind, monkeypatch):
    images = faces(tmp_path, "folder")
    (tmp_path / "img_align_celeba" / "000002.jpg").write_bytes(b"no")
    with (tmp_path / celeba.PARTITION_FILES[0]).open("a") as table:
        table.write("000007.jpg 0\n")
    if kind == "zip":
        shutil.make_archive(str(tmp_path / "img_align_celeba"), "zip", tmp_path, "img_align_celeba")
        shutil.rmtree(tmp_path / "img_align_celeba")
    train = load_dataset(CelebA(fit=148, unreadable="skip"), tmp_path)
    assert re.search(
        r"; 2 of 4 .*unreadable \((img_align_celeba/)?000002.jpg, 000007.jpg\)$",
        train.source,
    )
    middle = [images[index].crop((15, 35, 163, 183)) for index in (0, 2)]
    stretched = [
        np.asarray(image.resize((128, 128), Image.Resampling.BILINEAR)) for image in middle
    ]
    np.testing.assert_array_equal(pixels_of(train), stretched)
    assert (
        "unreadable"
        not in load_dataset(held_out_settings(CelebA(unreadable="skip")), tmp_path).source
    )
    # Sizes are cached for each split.
    monkeypatch.setattr(image_files, "_MIN_CACHED_IMAGES", 0)
    splits = [CelebA(split=split, unreadable="skip") for split in ("train", "valid", "test")]
    for settings in splits:
        load_dataset(settings, tmp_path)
    with monkeypatch.context() as context:
        context.setattr(image_files, "image_shapes", None)
        for settings in splits:
            load_dataset(settings, tmp_path)
    with pytest.raises(UserError, match=r"000007.jpg is missing.*unreadable=skip"):
        load_dataset(CelebA(), tmp_path)
    table = tmp_path / celeba.PARTITION_FILES[0]
    table.write_text(table.read_text().replace("000007.jpg 0\n", ""))
    with pytest.raises(UserError, match=r"000002.jpg in .*not an image.*unreadable=skip"):
        load_dataset(CelebA(), tmp_path)
    with pytest.raises(UserError, match=r"000004.jpg in .*: it is 178x218, too small for fit=180"):
        load_dataset(CelebA(fit=180, split="valid"), tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
def test_first_faces_script_writes_a_readable_archive(tmp_path, zipped):
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
    command = [sys.executable, str(script), "--count", "3", "--out", str(tmp_path)]
    subprocess.run([*command, str(given)], check=True)
    found = load_dataset(Images(str(tmp_path / "celeba_10k_89x109.npz")))
    assert (len(found), found.shape) == (3, (3, 109, 89))
    means = found.batch(torch.arange(3)).mean((2, 3))
    assert torch.allclose(means[:, 0], torch.tensor([40.0, 80.0, 120.0]) / 255, atol=0.01)
    (tmp_path / "no.zip").write_text("no")
    refused = subprocess.run(
        [*command, str(tmp_path / "no.zip")], check=False, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "zip archive" in refused.stderr
