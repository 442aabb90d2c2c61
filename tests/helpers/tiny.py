"""Tiny runs through the command line, and what they leave."""

from command import stopped
from safetensors import safe_open

TINY = [
    "--set",
    "training.steps=400",
    "--set",
    "training.batch=16",
    "--set",
    "training.log_every=7",
    "--set",
    "data.images=256",
    "--set",
    "model.channels=(4,4,4)",
    "--set",
    "model.hidden=16",
    "--device",
    "cpu",
    "--checkpoint-every",
    "0.02s",
]


def newest(run):
    return sorted((run / "checkpoint").glob("step-*"))[-1]


def weights(run):
    with safe_open(newest(run) / "tensors.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def stopped_run(run):
    """A run ended on the way, with two checkpoints."""
    done = stopped(100, "train", "shapes2d-quick", *TINY, "--run", run)
    assert done.returncode == 0, done.stderr
    assert "controlvae resume" in done.stdout
    return run


def assert_same_run(one, other):
    assert (one / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes()
    left, right = weights(one), weights(other)
    assert newest(one).name == newest(other).name
    assert left.keys() == right.keys()
    assert all(left[name].equal(right[name]) for name in left)
