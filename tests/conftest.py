"""Fixtures and options that all tests share."""

import random

import numpy as np
import pytest
import torch

# Tiny networks gain nothing from a second thread, and lose a lot next to a busy process.
torch.set_num_threads(1)

# Folders and files whose tests train, start processes or need other frameworks.
SLOW = (
    "integrations/",
    "lab/bench/",
    "lab/dashboard/",
    "lab/engines/",
    "lab/evaluation/",
    "lab/reports/",
    "lab/runs/",
    "lab/test_",
    "lab/training/",
    "paper/",
    "test_docs.py",
    "test_release.py",
)


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="skip the tests that take long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--fast"):
        return
    tests = config.rootpath / "tests"
    slow = [i for i in items if i.path.relative_to(tests).as_posix().startswith(SLOW)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seed every generator, so that a test draws the same numbers whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """Give a test an empty cache, no data folder and an empty working directory."""
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
