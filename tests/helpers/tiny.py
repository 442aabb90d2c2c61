"""Tiny runs through the command line, and comparison of their files."""

from command import stopped
from safetensors import safe_open


def sets(*assignments):
    """Return the options that change these settings."""
    return [word for text in assignments for word in ("--set", text)]


TINY = [
    *sets("training.steps=400", "training.batch=16", "training.log_every=7", "data.images=256"),
    *sets("model.channels=(4,4,4)", "model.hidden=16"),
    *("--device", "cpu", "--checkpoint-every", "0.02s"),
]


def newest(run):
    """Return the newest checkpoint."""
    return sorted((run / "checkpoint").glob("step-*"))[-1]


def weights(run):
    """Return the tensors of the newest checkpoint."""
    with safe_open(newest(run) / "tensors.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def stopped_run(run):
    """Train a run that is stopped early, with two checkpoints."""
    done = stopped(100, "train", "shapes2d-quick", *TINY, "--run", run)
    assert done.returncode == 0, done.stderr
    assert "controlvae resume" in done.stdout
    return run


def assert_same_run(one, other):
    """Assert that two runs have the same log and the same newest checkpoint."""
    assert (one / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes()
    left, right = weights(one), weights(other)
    assert newest(one).name == newest(other).name
    assert left.keys() == right.keys()
    assert all(left[name].equal(right[name]) for name in left)
