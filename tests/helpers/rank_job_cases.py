"""Jobs of `lab.fit` and `lab.train` that groups of processes run for `tests/lab/ranks`."""

import contextlib
import os
from pathlib import Path

import torch
from custom_models import PlainVAE, groups

import controlvae as cv
from controlvae import lab
from controlvae.errors import RunError, UserError

FOLDER = Path(os.environ.get("RANK_RUNS", "."))
STEPS, STOP = 60, 30
SETTINGS = {"batch": 9, "log_every": 5, "device": "cpu", "progress": False, "checkpoint_every": 0}


def make():
    """Return a model in float64 and its data."""
    torch.manual_seed(1)
    return PlainVAE().double(), groups(64).double()


def fit(run, steps=STEPS, law=None, data=None, model=None, **settings):
    """Train for some steps and return the log as a tensor of KL and β."""
    own_model, own_data = make()
    law = law or cv.Auto(1.0)
    trained = lab.fit(
        model or own_model,
        own_data if data is None else data,
        law=law,
        steps=steps,
        run=run,
        **SETTINGS | settings,
    )
    return read_log(trained)


def read_log(run):
    """Return step, KL and β of every line of a log."""
    return torch.tensor([[line["step"], line["kl"], line["beta"]] for line in run.log])


def stop_at(step):
    """Return a callback that fails at a step, which saves the run."""

    def stop(progress):
        if progress.step >= step:
            raise ValueError("stop here")

    return stop


def fail(function):
    """Return the line of an expected error as bytes, with a letter for its kind first."""
    try:
        function()
    except (UserError, RunError) as error:
        return as_tensor(("U" if isinstance(error, UserError) else "R") + str(error))
    return as_tensor("no error")


def as_tensor(text):
    """Return a text as a tensor of bytes."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def case_unbroken(rank, size):
    """Train to the end."""
    return fit(FOLDER / f"unbroken-{size}", validation=8)


def case_broken(rank, size):
    """Stop in the middle, by a callback of rank 0 that fails."""
    return fail(lambda: fit(FOLDER / f"broken-{size}", callbacks=[stop_at(STOP)], validation=8))


def case_default_folder(rank, size):
    """Train twice without a folder: the second run gets another one."""
    own = FOLDER / "default"
    own.mkdir(exist_ok=True)
    with contextlib.chdir(own):
        return torch.stack([fit(None, steps=10) for _ in range(2)])


def case_other_law(rank, size):
    """Train with another target on rank 1."""
    return fail(lambda: fit(FOLDER / f"law-{size}", law=cv.Auto(1.0 + rank)))


def case_other_data(rank, size):
    """Train with other data on rank 1."""
    data = make()[1]
    data[5] += rank
    return fail(lambda: fit(FOLDER / f"data-{size}", data=data, likelihood="squared-error"))


def case_other_model(rank, size):
    """Train a wider model on rank 1."""
    model = PlainVAE(hidden=32 + rank).double()
    return fail(lambda: fit(FOLDER / f"model-{size}", model=model))


def case_missing_file(rank, size):
    """Name a file that is missing on rank 1 alone."""
    source = FOLDER / f"there-{rank}.py"
    if rank == 0:
        source.write_text("from rank_job_cases import defined as experiment\n")
    return fail(lambda: lab.train(str(source), run=FOLDER / f"missing-{size}", device="cpu"))


def case_small_batch(rank, size):
    """Train with fewer examples in a batch than ranks."""
    return fail(lambda: fit(FOLDER / f"small-{size}", batch=1))


def case_full_folder(rank, size):
    """Name a folder that holds something."""
    folder = FOLDER / f"full-{size}"
    folder.mkdir(exist_ok=True)
    (folder / "mine").touch()
    return fail(lambda: fit(folder))


def case_sharded(rank, size):
    """Train a sharded model, stop, and resume it."""
    run = FOLDER / f"sharded-{size}"
    error = fail(lambda: fit(run, sharded=True, callbacks=[stop_at(STOP)]))
    assert bytes(error.tolist()).startswith(b"Rcallback")
    model, data = make()
    options = {"device": "cpu", "progress": False}
    return read_log(lab.resume(run, model, data, sharded=True, **options))


def case_resumed(rank, size):
    """Resume a run that one process has begun."""
    model, data = make()
    return read_log(lab.resume(FOLDER / "broken-1", model, data, device="cpu", progress=False))


for name in [name for name in vars() if name.startswith("case_")]:
    if name not in ("case_unbroken", "case_broken"):
        vars()[name].sizes = (2,)


def defined():
    """Return a definition for a file that is there."""
    model, data = make()
    return lab.define(model, data, law=cv.Auto(1.0), steps=10)
