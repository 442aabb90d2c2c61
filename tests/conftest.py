"""What several test files share."""

import random

import numpy as np
import pytest
import torch

torch.set_num_threads(
    1
)  # tiny networks: a second thread gains nothing, and beside a busy process it costs a lot


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Whichever tests came before it in its process, a test draws the same."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """A cache of its own, no data folder, and a working folder where nothing is yet."""
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
