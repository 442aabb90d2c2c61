"""What several test files share."""

import pytest


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """A cache of its own, no data folder, and a working folder where nothing is yet."""
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
