"""Rate-distortion curves of one network, from Python and the command line."""

import csv
import json

import numpy as np
import pytest
import torch
from command import within
from rate_curves import QUIET, TINY, SmallVAE
from tiny import sets

from controlvae import lab
from controlvae.distributions import gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.api.curve_results import measure_run_curve
from controlvae.lab.evaluation.rate_curve import Calibration, RateCurve, run_at_rate
from controlvae.lab.runs.requests import parse_target
from controlvae.lab.training.runner import RunOptions


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("curve") / "run"
    settings = {"rates": (2, 10), "bins": 4, "points": 6, "examples": 500, "overrides": TINY}
    return lab.curve("shapes2d-quick", run=path, **settings, **QUIET)


def test_every_rate_is_met_and_distortion_falls_with_it(measured):
    points = measured.curve.points
    assert [point.rate for point in points] == pytest.approx(np.geomspace(2, 10, 6).tolist())
    assert max(abs(point.error) for point in points) < 0.05
    losses = [point.reconstruction for point in points]
    assert losses[0] > losses[2] > losses[4]
    assert all(p.elbo == pytest.approx(-(p.kl + p.reconstruction)) for p in points)
    prices = [point.price for point in points]
    assert prices == sorted(prices, reverse=True)


def test_curve_is_written_with_its_figures_and_read_again(measured):
    folder = measured.run.folder
    assert RateCurve.read(folder) == measured.curve
    rows = list(csv.DictReader((folder.path / "curve.csv").open()))
    assert float(rows[3]["kl"]) == measured.curve.points[3].kl
    for name in ("curve.png", "curve-images.png"):
        assert (folder.figures / name).stat().st_size > 10_000
    (folder.path / "curve.json").write_text('{"points": 3}')
    with pytest.raises(UserError, match="is damaged"):
        RateCurve.read(folder)
    (folder.path / "curve.json").write_text(json.dumps(measured.curve.to_dict()))


def test_trained_model_takes_a_rate(measured):
    low, high = measured.at(2.5), measured.at(9.0)
    x = low.examples.batch(torch.arange(200))
    kl = lambda run: gaussian_kl(run.vae.encode(x)).sum(1).mean().item()  # noqa: E731
    assert kl(low) == pytest.approx(2.5, rel=0.15)
    assert kl(high) == pytest.approx(9.0, rel=0.15)
    setting = measured.curve.calibration.setting_for(9.0)
    with torch.no_grad():
        direct = measured.run.model.encode(x, rate=setting).mean
    torch.testing.assert_close(direct, high.vae.encode(x).mean.detach())
    assert low.sample(4).shape == (4, 1, 32, 32)
    with pytest.raises(UserError, match="which the model has learnt"):
        run_at_rate(measured.run, 40.0)
    with pytest.raises(UserError, match="number of nats from"):
        measured.at(40.0)
    (drawn,) = lab.sample(measured.run, 4, rate=9.0).files
    assert drawn.name == "samples-9-nats.png"
    by_hand = measured.run.at_rate(9.0).reconstruct(x[:2])
    torch.testing.assert_close(by_hand, high.reconstruct(x[:2]))


def test_same_call_resumes_and_other_settings_are_refused(measured):
    settings = {"rates": (2, 10), "bins": 4, "points": 3, "examples": 100}
    path, before = measured.run.folder.path, measured.run.folder.log_file.read_bytes()
    again = lab.curve("shapes2d-quick", run=path, overrides=TINY, **settings, **QUIET)
    assert again.run.step == 500
    assert measured.run.folder.log_file.read_bytes() == before
    with pytest.raises(UserError, match="other settings"):
        lab.curve("shapes2d-quick", run=path, overrides={}, **settings, **QUIET)
    with pytest.raises(ValueError, match="many set points"):
        parse_target('{"target": 5}', again.run.experiment)


def test_separate_runs_are_drawn_next_to_the_curve(measured, tmp_path):
    steps = {**TINY, "training.steps": 100, "control": "Auto(5)"}
    lab.train("shapes2d-quick", run=tmp_path / "alone", overrides=steps, **QUIET)
    settings = {"rates": (2, 10), "bins": 4, "points": 3, "examples": 100, "overrides": TINY}
    path = measured.run.folder.path
    result = lab.curve("shapes2d-quick", run=path, compare=tmp_path, **settings, **QUIET)
    (point,) = result.curve.separate
    assert point.label.endswith("alone")
    alone = lab.load_run(tmp_path / "alone")
    assert point.price == alone.log["beta"][-1]
    assert point.kl == pytest.approx(alone.log["kl"][-1], rel=0.3)
    with pytest.raises(UserError, match="no run folder"):
        lab.curve("shapes2d-quick", run=path, compare=tmp_path / "none", **settings, **QUIET)


def test_model_of_the_user_is_conditioned_in_a_copy(tmp_path):
    draws = np.random.default_rng(0)
    data = (draws.normal(size=(500, 3)) @ draws.normal(size=(3, 12))).astype(np.float32)
    model = SmallVAE()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"rates": (1, 6), "bins": 4, "points": 5, "learning_rate": 5e-3, "batch": 64}
    path = tmp_path / "mine"
    result = lab.curve(model, data, steps=800, run=path, **settings, **QUIET)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert result.curve.largest_error < 0.05
    losses = [point.reconstruction for point in result.curve.points]
    assert losses == sorted(losses, reverse=True)
    loaded = lab.load_run(path, model=SmallVAE, dataset=data)
    setting = result.curve.calibration.setting_for(4.0)
    x = torch.from_numpy(data[:8])
    at = [run_at_rate(run, setting).vae.encode(x).mean for run in (loaded, result.run)]
    torch.testing.assert_close(at[0], at[1])


def test_model_that_returns_means_is_refused(tmp_path):
    class Means(SmallVAE):
        encode = decode = None

        def terms(self, batch, noise):
            x = batch[0] if isinstance(batch, list | tuple) else batch
            h = self.heads(torch.relu(self.hidden(x)))
            return h.square().mean(), h.abs().mean()

    data = np.zeros((64, 12), np.float32)
    with pytest.raises(UserError, match="its own reconstruction and KL"):
        lab.curve(Means(), data, steps=5, batch=8, run=tmp_path / "means", **QUIET)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": (10, 2)}, "the lower first"),
        ({"rates": 5}, "lowest and the highest rate"),
        ({"rates": ("a", "b")}, "lowest and the highest rate"),
        ({"bins": 7}, "multiple of rates.bins"),
        ({"points": 1}, "points must be at least 2"),
        ({"points": [1.0, 50.0]}, "rates must lie in 3..24"),
        ({"learning_rate": 1e-3}, "learning_rate is for your own model"),
    ],
)
def test_wrong_arguments_are_refused_before_training(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        lab.curve("shapes2d-quick", run=tmp_path / "new", overrides=TINY, **arguments, **QUIET)
    assert not (tmp_path / "new").exists()


def test_calibration_inverts_a_monotone_curve():
    settings = tuple(np.geomspace(2, 20, 9))
    calibration = Calibration(settings, tuple(1.1 * setting**0.9 for setting in settings))
    assert 1.1 * calibration.setting_for(6.0) ** 0.9 == pytest.approx(6.0, rel=1e-6)
    assert calibration.setting_for(1e3) == pytest.approx(20)


def test_command_refuses_a_search_over_separate_networks(tmp_path):
    words = ("--rates", "2,8", "--separate", "--find", "elbo")
    done = within("curve", "shapes2d-quick", "--run", tmp_path / "run", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "leave out --separate" in done.stderr


def test_command_prints_a_table_and_refuses_wrong_rates(tmp_path):
    words = ["curve", "shapes2d-quick", "--run", tmp_path / "run", "--device", "cpu", "--bins", "4"]
    small = sets(
        "training.steps=60", "data.images=200", "model.channels=(4,4,4)", "model.hidden=16"
    )
    done = within(*words, "--rates", "2,8", "--points", "3", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 rates from 2 to 8 nats" in done.stdout
    assert "price of a nat" in done.stdout
    refused = within(*words, "--rates", "8", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip().count("\n") == 0


def test_settings_without_a_range_are_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="leave out rates=none"):
        lab.curve(
            "shapes2d-quick", rates=(2.0, 8.0), run=tmp_path / "run", overrides={"rates": None}
        )
    assert not (tmp_path / "run").exists()


def test_runs_of_other_data_are_not_compared(measured, tmp_path, capsys):
    small = {"training.steps": 2, "training.batch": 4, "model.width": 16, "model.inner": 16}
    lab.train("text-quick", run=tmp_path / "text", overrides=small, device="cpu", progress=False)
    result = measure_run_curve(
        measured.run, RunOptions.parse("cpu"), points=2, examples=8, compare=[tmp_path / "text"]
    )
    assert result.curve.separate == ()
    assert "it is not compared" in capsys.readouterr().err


def test_network_for_all_rates_is_not_exported_as_a_program(measured, tmp_path):
    with pytest.raises(UserError, match="format hub"):
        lab.export(measured.run, tmp_path / "programs", ["torch", "hub"])
    files = lab.export(measured.run, tmp_path / "hub", "hub")
    assert {file.path.name for file in files} >= {"model.safetensors", "config.json"}


def test_fid_of_one_image_is_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="2 images or more, or 0 for none, got 1"):
        lab.curve("shapes2d-quick", rates=(2.0, 8.0), run=tmp_path / "run", fid=1)
    assert not (tmp_path / "run").exists()
