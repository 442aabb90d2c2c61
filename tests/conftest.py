"""What several test files share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_draws():
    """Whichever tests came before it in its process, a test draws the same."""
    torch.manual_seed(0)


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """A cache of its own, no data folder, and a working folder where nothing is yet."""
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
