"""Folders of the package `datasets`, compared with the images and sentences written to them."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

datasets = pytest.importorskip("datasets")

from controlvae.errors import UserError
from controlvae.lab.config import CIFAR10, Images, TextFile
from controlvae.lab.data import cifar10, huggingface
from controlvae.lab.data.registry import held_out_settings, load_dataset

PUBLISHED = Path(os.environ.get("CONTROLVAE_DATA", "data")).absolute()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def pixels():
    """Photographs of CIFAR-10 if it is available, otherwise noise: (50, 32, 32, 3)."""
    if cifar10.find_cifar10("test", PUBLISHED if PUBLISHED.is_dir() else None) is None:
        return np.random.default_rng(0).integers(256, size=(50, 32, 32, 3), dtype=np.uint8)
    return load_dataset(CIFAR10(32, "test", images=50), PUBLISHED).rows.view(50, 32, 32, 3).numpy()


def image_rows(pixels):
    columns = {
        "img": [Image.fromarray(image) for image in pixels],
        "label": list(range(len(pixels))),
    }
    return datasets.Dataset.from_dict(
        columns, datasets.Features(img=datasets.Image(), label=datasets.Value("int64"))
    )


def write(parts, folder, layout):
    """Write splits with `save_to_disk`, or as parquet files in a layout of the Hub."""
    if layout == "save_to_disk":
        datasets.DatasetDict(parts).save_to_disk(folder)
        return str(folder)
    for name, rows in parts.items():
        file = folder / layout.format(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(file)
    return str(folder)


LAYOUTS = (
    "save_to_disk",
    "data/{}-00000-of-00001.parquet",
    "plain_text/{}/0000.parquet",
    "{}.parquet",
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_keep_their_splits(tmp_path, pixels, layout):
    path = write(
        {"train": image_rows(pixels[:40]), "test": image_rows(pixels[40:])},
        tmp_path / "copy",
        layout,
    )
    train = Images(path)
    test = held_out_settings(train)
    assert test == Images(path, split="test")
    for settings, expected in ((train, pixels[:40]), (test, pixels[40:])):
        found = load_dataset(settings)
        np.testing.assert_array_equal(found.rows.view(expected.shape), expected)
        assert (found.shape, found.split) == ((3, 32, 32), f"its own {settings.split} part")
    assert held_out_settings(test) is None


def test_single_split_is_divided_like_an_array(tmp_path, pixels):
    image_rows(pixels).save_to_disk(tmp_path / "copy")
    np.save(tmp_path / "array.npy", pixels)
    for part in ("train", "test"):
        copy, array = (
            load_dataset(Images(str(tmp_path / name), held_out=0.2, split=part))
            for name in ("copy", "array.npy")
        )
        assert copy.split == array.split
        np.testing.assert_array_equal(copy.rows, array.rows)
    assert held_out_settings(Images(str(tmp_path / "copy"))) is None


def test_cifar10_is_read_from_a_datasets_folder(tmp_path, pixels, monkeypatch):
    monkeypatch.setattr(cifar10, "COUNTS", {"train": 40, "test": 10})
    write(
        {"train": image_rows(pixels[:40]), "test": image_rows(pixels[40:])},
        tmp_path / "cifar10",
        LAYOUTS[2],
    )
    for split, expected in (("train", pixels[:40]), ("test", pixels[40:])):
        found = load_dataset(CIFAR10(32, split), tmp_path)
        np.testing.assert_array_equal(found.rows.view(expected.shape), expected)
        assert found.source == f"CIFAR-10 from {tmp_path / 'cifar10'}"


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_text_equals_a_file_of_the_same_lines(tmp_path, layout):
    lines = [f"the {'tall ' * (number % 3)}house number {number}" for number in range(60)]
    train, test = (
        datasets.Dataset.from_dict({"sentence": part, "id": part})
        for part in (lines[:45], lines[45:])
    )
    path = write({"train": train, "test": test}, tmp_path / "copy", layout)
    (tmp_path / "train.txt").write_text("\n".join(lines[:45]))
    copy, file = (
        load_dataset(TextFile(text, held_out=0)) for text in (f"{path}:sentence", "train.txt")
    )
    assert copy.fingerprint() == file.fingerprint()
    # The house numbers of the test set are not in the training set.
    tested = load_dataset(held_out_settings(TextFile(f"{path}:sentence")))
    assert [tested.to_text(row) for row in tested.tokens] == [
        line.rsplit(" ", 1)[0] + " <UNK>" for line in lines[45:]
    ]
    train.select_columns("sentence").save_to_disk(tmp_path / "whole")
    for part in ("train", "test"):
        whole, file = (load_dataset(TextFile(name, 0.5, part)) for name in ("whole", "train.txt"))
        assert (whole.fingerprint(), whole.split) == (file.fingerprint(), file.split)


def test_validation_split_replaces_a_missing_test_split(tmp_path):
    train, validation = (
        datasets.Dataset.from_dict({"text": rows}) for rows in (["a b\nc", "a"], ["c\r\nb"])
    )
    datasets.DatasetDict(train=train, validation=validation).save_to_disk(tmp_path / "copy")
    settings = TextFile(str(tmp_path / "copy"))
    trained, tested = load_dataset(settings), load_dataset(held_out_settings(settings))
    assert [trained.to_text(row) for row in trained.tokens] == ["a b c", "a"]
    assert [tested.to_text(row) for row in tested.tokens] == ["c b"]
    assert tested.split.startswith("its own validation part")


def test_errors_name_what_is_missing(tmp_path, pixels, monkeypatch):
    image_rows(pixels[:3]).save_to_disk(tmp_path / "copy")
    texts = datasets.Dataset.from_dict({"premise": ["a b"], "hypothesis": ["c d"], "label": [1]})
    datasets.DatasetDict(valid=texts, test=texts).save_to_disk(tmp_path / "pairs")
    wrong = {
        TextFile("copy"): "copy has no column of text; its columns are img, label",
        Images("copy:label"): "copy has no column 'label' of images; its columns are img, label",
        Images("copy", split="test"): "split='test' needs held_out",
        TextFile("pairs"): "pairs has no split 'train'; it has valid, test",
        TextFile(
            "pairs/test"
        ): "test has 2 columns of text; name one: path:premise, path:hypothesis",
    }
    for settings, message in wrong.items():
        with pytest.raises(UserError, match=message):
            load_dataset(settings)
    next((tmp_path / "copy").glob("*.arrow")).write_bytes(b"corrupt")
    with pytest.raises(UserError, match="copy cannot be read by datasets"):
        load_dataset(Images("copy"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"copy needs the datasets package: pip install 'controlvae\[datasets\]'"
    ):
        load_dataset(Images("copy"))


def test_other_folders_are_not_datasets_folders(tmp_path):
    (tmp_path / "state.json").touch()  # checkpoints have such a file
    assert not huggingface.is_datasets_folder(tmp_path)
