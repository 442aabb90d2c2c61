"""The registry of data sets."""

import pytest
from photos import photos, save

from controlvae.lab.data.registry import dataset_specs, describe_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


def test_every_data_set_describes_its_files(tmp_path):
    assert all(
        describe_dataset(name, tmp_path).found.endswith("no file") for name in dataset_specs()
    )
    save(tmp_path / "faces", photos(1), ["a.png"])
    (tmp_path / "cifar10_test.npz").touch()
    assert describe_dataset("images", tmp_path).found.startswith(str(tmp_path / "faces"))
    assert (
        describe_dataset("cifar10", tmp_path).found
        == f"train: no file; test: {tmp_path / 'cifar10_test.npz'}"
    )
