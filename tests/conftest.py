"""Fixtures and options that all tests share."""

import os
import random

import numpy as np
import pytest
import torch

# Without a GPU the kernels run in Triton's interpreter. Triton reads this when it is imported, which
# other packages do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Tiny networks gain nothing from a second thread, and lose a lot next to a busy process.
torch.set_num_threads(1)

# Tests that train, start processes, compile or need other frameworks, by file and by name.
SLOW = (
    "benchmarks/test_laws_plants.py",
    "benchmarks/",
    "integrations/",
    "lab/api/",
    "lab/bench/",
    "lab/cluster/test_jobs.py",
    "lab/cluster/test_slurm.py",
    "lab/dashboard/",
    "lab/engines/",
    "lab/evaluation/",
    "lab/reports/",
    "lab/runs/",
    "lab/test_",
    "lab/training/",
    "paper/",
    "test_docs.py",
    "test_package.py",
    "test_release.py",
)
SLOW_NAMES = ("inductor", "interpreter", "rank", "light", "compiled", "real_training")


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="skip the tests that take long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--fast"):
        return
    tests = config.rootpath / "tests"
    slow = [
        item
        for item in items
        if item.path.relative_to(tests).as_posix().startswith(SLOW)
        or any(name in item.name for name in SLOW_NAMES)
    ]
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


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Start one Chromium for all tests of a module; skip them where there is none."""
    from browser import CHROMIUM, start_chromium

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: `make browser` installs Debian's")
    with start_chromium(tmp_path_factory.mktemp("chromium")) as process:
        yield process


@pytest.fixture
def tab(chromium):
    """Give a test an empty page of its own in the Chromium of its module."""
    with chromium.tab() as page:
        yield page
