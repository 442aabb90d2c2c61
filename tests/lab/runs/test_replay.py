"""Replay of recorded weights: the schedule through log windows, and runs that use it."""

import json

import numpy as np
import pytest
from command import controlvae, within
from tiny import TINY

from controlvae.errors import UserError
from controlvae.lab.config import preset
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.replay import recorded_weight, replay_weight


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    done = controlvae("train", "shapes2d-quick", *TINY, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


def test_recorded_weight_is_replayed(straight, tmp_path):
    words = ["train", "shapes2d-quick", *TINY]
    done = within(*words, "--replay", straight, "--run", tmp_path / "replay", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded, replayed = (
        {
            r["step"]: r["beta"]
            for r in map(json.loads, (run / "log.jsonl").read_text().splitlines())
        }
        for run in (straight, tmp_path / "replay")
    )
    # A log line is a mean of seven steps, and the replay interpolates between such means.
    assert replayed[399] == pytest.approx(recorded[399], rel=0.05)
    missing = within(
        *words, "--replay", tmp_path / "nothing", "--run", tmp_path / "no", cwd=tmp_path
    )
    assert missing.returncode == 2


def recording(path, experiment, weights):
    """Return a run folder with nothing but a log, a line for every 500 steps."""
    folder = RunFolder(path)
    folder.create(experiment, "train")
    lines = [
        {"step": 500 * n, "kl": 1, "reconstruction": 1, "beta": b}
        for n, b in enumerate(weights, start=1)
    ]
    folder.log_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_replay_is_the_mean_of_the_seeds(tmp_path):
    # A fast decay with a wave, like a controller's weight that starts large.
    lines = np.arange(600)
    seeds = [2 + 85 * np.exp(-lines / tau) + 0.3 * np.sin(lines / 9) for tau in (40, 55)]
    folders = [
        recording(tmp_path / str(tau), preset("shapes2d-quick"), b) for tau, b in enumerate(seeds)
    ]
    weight, mean = recorded_weight(folders), np.mean(seeds, axis=0)
    replayed = np.interp(500 * lines + 250, weight.steps, weight.values)
    assert np.abs(replayed / mean - 1).max() < 0.01
    assert len(weight.steps) <= 120
    for value in (4.0, 0.0):
        constant = recorded_weight(
            [recording(tmp_path / f"at {value}", preset("shapes2d-quick"), [value] * 300)]
        )
        assert set(constant.values) == {value}


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_replay_smooths_noise(tmp_path, noise):
    lines = np.arange(3_000)
    smooth = 2 + 85 * np.exp(-lines / 200)
    noisy = smooth * (1 + noise * np.random.default_rng(0).normal(size=len(lines)))
    weight = recorded_weight([recording(tmp_path, preset("shapes2d-quick"), noisy)])
    replayed = np.interp(500 * lines + 250, weight.steps, weight.values)
    assert np.sqrt(np.mean((replayed / smooth - 1) ** 2)) < noise / 3
    assert np.mean(replayed / smooth) == pytest.approx(1, abs=noise / 10)


def test_short_recordings_are_replayed_exactly(tmp_path):
    weights = np.random.default_rng(0).uniform(1, 4, 120)
    weight = recorded_weight([recording(tmp_path, preset("shapes2d-quick"), weights)])
    np.testing.assert_array_equal(weight.steps, 500 * np.arange(120) + 250)
    np.testing.assert_array_equal(weight.values, weights)


def test_long_recordings_keep_their_ends(tmp_path):
    weights = np.random.default_rng(0).uniform(1, 4, 3_000)
    weight = recorded_weight([recording(tmp_path, preset("shapes2d-quick"), weights)])
    assert (weight.values[0], weight.values[-1]) == (weights[0], weights[-1])
    assert (weight.steps[0], weight.steps[-1]) == (250, 500 * 3_000 - 250)


def test_short_recordings_warn_and_other_terms_are_refused(tmp_path):
    kl, tc = preset("shapes2d-quick"), preset("shapes2d-control-factor")
    short = recording(tmp_path / "short", kl, [3.0, 2.0])
    with pytest.warns(UserWarning, match=r"ends at step 1,000; .* 2, .* to step 3,000"):
        assert replay_weight(kl, [short]).control.values == (3.0, 2.0)
    with pytest.raises(UserError, match="total correlation"):
        replay_weight(kl, [recording(tmp_path / "tc", tc, [3.0, 2.0])])
