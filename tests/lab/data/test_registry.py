"""The registry of data sets."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

import pytest
import torch
from photos import photos, save

from controlvae.lab.config import override, preset
from controlvae.lab.config.data import ImageSettings
from controlvae.lab.data import registry
from controlvae.lab.data.dataset import ByteImages
from controlvae.lab.data.registry import (
    DatasetSpec,
    dataset_specs,
    describe_dataset,
    held_out_settings,
    load_dataset,
)

pytestmark = pytest.mark.usefixtures("own_folders")


def test_every_data_set_describes_its_files(tmp_path):
    assert all(
        describe_dataset(name, tmp_path).found.endswith("no file") for name in dataset_specs()
    )
    save(tmp_path / "faces", photos(1), ["a.png"])
    (tmp_path / "cifar10_test.npz").touch()
    assert describe_dataset("images", tmp_path).found.startswith(str(tmp_path / "faces"))
    expected = f"train: no file; test: {tmp_path / 'cifar10_test.npz'}"
    assert describe_dataset("cifar10", tmp_path).found == expected


@dataclass(frozen=True)
class Noise(ImageSettings):
    """Images of noise, with settings that are defined next to their reader.

    Attributes:
        count: The number of images.
        split: The training or the test set.
    """

    count: int = 10
    split: Literal["train", "test"] = "train"


def load_noise(settings, root):
    rows = torch.from_numpy(photos(settings.count).reshape(settings.count, -1))
    return ByteImages(rows, (3, 12, 10), "noise", settings.split)


@pytest.fixture
def noise_module(monkeypatch):
    module = ModuleType("noise_reader")
    module.SPECS = [
        DatasetSpec(
            "noise",
            Noise,
            load_noise,
            about="noise",
            test_settings=lambda settings, root: replace(settings, split="test"),
        )
    ]
    monkeypatch.setitem(sys.modules, "noise_reader", module)
    monkeypatch.setattr(registry, "READER_MODULES", (*registry.READER_MODULES, "noise_reader"))
    dataset_specs.cache_clear()
    yield
    dataset_specs.cache_clear()


@pytest.mark.usefixtures("noise_module")
def test_new_data_set_needs_one_module_and_one_line():
    experiment = override(preset("shapes2d-quick"), ["data=Noise(7)"])
    assert experiment.data == Noise(7)
    assert len(load_dataset(experiment.data)) == 7
    assert held_out_settings(experiment.data) == Noise(7, "test")
    assert describe_dataset("noise").needs == "no files"
