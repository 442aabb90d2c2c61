"""Failures in the middle of `lab.fit`: one line that names the cause, and a run that resumes."""

import re

import pytest
import torch
from custom_models import Faulty, PlainVAE, RowStream, groups
from torch.optim import lr_scheduler

import controlvae as cv
from controlvae import lab
from controlvae.errors import Diverged, Interrupted, RunError, UserError

QUIET = {"progress": False, "device": "cpu"}
X = groups(128)


def fit(model, data, run, **options):
    settings = {"law": cv.Auto(3.0), "steps": 20, "batch": 16, "log_every": 5, **QUIET, **options}
    return lab.fit(model, data, run=run, **settings)


def test_a_stream_may_leave_the_range_later(tmp_path):
    stream = RowStream(torch.cat([X, 3 * X]))
    with pytest.raises(UserError, match=r"needs data in \[0, 1\], got values from 0 to 3"):
        fit(PlainVAE, stream, tmp_path / "run", likelihood="bernoulli")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_example_that_fails_in_training_is_named(workers, tmp_path):
    with pytest.raises(UserError, match=r"index 501 failed with OSError: 501.png") as caught:
        fit(PlainVAE, Faulty(bad=501), tmp_path / "run", steps=80, workers=workers)
    assert "\n" not in str(caught.value)
    resumed = lab.resume(tmp_path / "run", PlainVAE, Faulty(), workers=workers, **QUIET)
    assert resumed.step == 80


def test_a_worker_that_dies_is_named(tmp_path):
    with pytest.raises(
        RunError, match=r"a process that reads data has ended .*workers=0"
    ) as caught:
        fit(PlainVAE, Faulty(501, dies=True), tmp_path / "run", steps=80, workers=1)
    assert "\n" not in str(caught.value)
    resumed = lab.resume(tmp_path / "run", PlainVAE, Faulty(), workers=0, **QUIET)
    assert resumed.step == 80


def test_a_scheduler_that_ends_too_early_is_named(tmp_path):
    def schedule(optimiser):
        return lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=10)

    with pytest.raises(UserError, match=r"OneCycleLR failed at step 11.*as far as steps") as caught:
        fit(PlainVAE, X, tmp_path / "run", scheduler=schedule)
    assert "\n" not in str(caught.value)


def finished(tmp_path, model=PlainVAE, data=X):
    """Resume a stopped run to its end, and compare it with one that was not stopped."""
    run = lab.resume(tmp_path / "run", model, data, **QUIET)
    unbroken = fit(model, data, tmp_path / "unbroken")
    return run.step == 20 and run.log == unbroken.log


def test_a_callback_that_raises_is_named_and_the_run_is_saved(tmp_path):
    def broken_plot(progress):
        if progress.step >= 10:
            raise ZeroDivisionError("no\nfigure")

    with pytest.raises(
        RunError, match=r"broken_plot failed at step 10 \(Zero.*lab.resume"
    ) as caught:
        fit(PlainVAE, X, tmp_path / "run", callbacks=[broken_plot])
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert lab.load_run(tmp_path / "run").step == 10
    assert finished(tmp_path)


def test_ctrl_c_inside_a_callback_saves_the_run(tmp_path):
    def interrupt(progress):
        if progress.step >= 10:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped at step 10 of 20"):
        fit(PlainVAE, X, tmp_path / "run", callbacks=[interrupt])
    assert finished(tmp_path)


class Unstable(PlainVAE):
    """The mean becomes NaN after some steps, in one process only."""

    broken = False

    def encode(self, x):
        mean, log_variance = super().encode(x)
        return mean * (float("nan") if self.broken else 1), log_variance


def test_a_loss_that_becomes_nan_stops_at_the_last_good_checkpoint(tmp_path, monkeypatch):
    def break_model(progress):
        Unstable.broken = progress.step >= 10

    monkeypatch.setattr(Unstable, "broken", False)
    with pytest.raises(Diverged) as caught:
        fit(Unstable, X, tmp_path / "run", callbacks=[break_model], checkpoint_every=0)
    line = str(caught.value)
    assert "\n" not in line
    assert re.search("at step 11; the last good checkpoint is step \\d+. Try a smaller learn", line)
    Unstable.broken = False
    assert finished(tmp_path, Unstable)


def test_nan_in_an_example_is_found_after_the_loss_shows_it(tmp_path):
    class Late(Faulty):
        def __getitem__(self, index):
            return super().__getitem__(index) * (float("nan") if index == 501 else 1)

    with pytest.raises(Diverged, match=r"because index 501 of the data contains NaN.* at step"):
        fit(PlainVAE, Late(), tmp_path / "run", steps=80)
