"""Tables of settings and metrics, and views of models: examples, sentences and rates."""

import io
import json
import shutil

import numpy as np
import pytest
import torch
from command import within
from dashboards import ask, get, get_json, served, train_two
from PIL import Image
from rate_curves import QUIET, TINY

from controlvae import lab
from controlvae.distributions import gaussian_kl
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import as_pixels, load_run

SHORT = ["training.steps=20", "training.log_every=10", "training.batch=8"]


@pytest.fixture(scope="module")
def served_runs(tmp_path_factory):
    """Serve two image runs, a text run, a dialog run and a rate-conditioned run."""
    root = train_two(tmp_path_factory.mktemp("runs"))
    for name in ("text-quick", "dialog-quick"):
        sets = [word for text in SHORT for word in ("--set", text)]
        done = within("train", name, *sets, "--device", "cpu", "--run", root / name, cwd=root)
        assert done.returncode == 0, done.stderr
    settings = {"rates": (2, 10), "bins": 4, "points": 3, "examples": 200}
    overrides = {**TINY, "training.steps": 200}
    lab.curve("shapes2d-quick", run=root / "curve", overrides=overrides, **settings, **QUIET)
    shutil.rmtree(root / "some" / "stopped" / "checkpoint")
    with served(root) as (address, _):
        yield root, address


def image(address, path, **parameters):
    with get(address, path, **parameters) as answer:
        assert answer.headers["Content-Type"] == "image/png"
        return np.asarray(Image.open(io.BytesIO(answer.read())))


def test_settings_of_several_runs(served_runs):
    _, address = served_runs
    names = ["some/ended", "text-quick"]
    answer = get_json(address, "/settings", run=names)
    assert answer["runs"] == names
    settings = {row["name"]: row["values"] for row in answer["settings"]}
    assert settings["training.steps"] == [60, 20]
    assert settings["control"] == ["PI", "Auto"]
    assert settings["control.target"] == [18.0, 4.0]
    assert settings["data.images"] == [256, None]
    assert "type" not in settings
    assert get_json(address, "/settings") == {"runs": [], "settings": []}
    assert ask(address + "/settings?" + "&".join(f"run={n}" for n in range(1_001)))[0] == 400


def test_metrics_of_several_runs(served_runs):
    root, address = served_runs
    metrics = {"step": 60, "elbo": -34.3, "kl": 18.0, "step_response": {"overshoot": 0.25}}
    RunFolder(root / "some" / "ended").metrics_file.write_text(json.dumps(metrics))
    RunFolder(root / "some" / "stopped").metrics_file.write_text("{")  # torn
    answer = get_json(address, "/metrics", run=["some/ended", "text-quick", "some/stopped"])
    rows = {row["name"]: row for row in answer["metrics"]}
    assert rows["elbo"]["values"] == [-34.3, None, None]
    assert (rows["elbo"]["label"], rows["elbo"]["better"]) == ("ELBO", "higher")
    assert rows["kl"]["better"] is None
    overshoot = rows["step_response.overshoot"]
    assert (overshoot["values"][0], overshoot["unit"]) == (25.0, "%")
    assert "fid.samples.score" not in rows


def test_example_shows_its_posterior(served_runs):
    root, address = served_runs
    found = get_json(address, "/latents", run="some/ended", example=3)
    assert (found["example"], found["rates"]) == (3, None)
    run = load_run(RunFolder(root / "some" / "ended"))
    with torch.no_grad():
        posterior = run.vae.encode(run.examples.batch(torch.tensor([3])))
    assert found["code"] == pytest.approx(posterior.mean[0].tolist(), abs=1e-3)
    deviation = posterior.log_variance[0].mul(0.5).exp().tolist()
    assert found["sd"] == pytest.approx(deviation, abs=1e-3)
    assert found["kl"] == pytest.approx(gaussian_kl(posterior)[0].tolist(), abs=1e-3)
    assert get_json(address, "/code", run="some/ended", example=3) == found["code"]
    same = get_json(address, "/example", run="some/ended", example=3)
    assert same == {key: found[key] for key in ("example", "code", "sd", "kl")}

    pair = image(address, "/original", run="some/ended", example=3)[..., 0]
    original = as_pixels(run, run.examples.batch(torch.tensor([3])).float())[0, 0].numpy()
    code = ",".join(map(str, found["code"]))
    decoded = image(address, "/image", run="some/ended", code=code)[..., 0]
    height, width = original.shape
    assert np.array_equal(pair[:height, :width], (255 * original).round())
    assert np.abs(pair[:height, -width:].astype(int) - decoded).max() <= 1


@pytest.mark.parametrize("name", ["text-quick", "dialog-quick"])
def test_sentence_follows_the_code(served_runs, name):
    _, address = served_runs
    found = get_json(address, "/latents", run=name)
    assert found["text"]
    assert bool(found.get("context")) == (name == "dialog-quick")
    assert len(found["code"]) == found["among"]
    code = ",".join(map(str, found["code"]))
    first = get_json(address, "/sentence", run=name, code=code)
    assert isinstance(first["sentence"], str)
    assert get_json(address, "/sentence", run=name, code=code) == first  # greedy
    assert ask(f"{address}/sentence?run={name}&code=1,2")[0] == 400
    assert ask(f"{address}/image?run={name}&code={code}")[0] == 400
    assert ask(f"{address}/original?run={name}")[0] == 400


def test_reconstructions_are_the_sentences_of_posterior_means(served_runs):
    root, address = served_runs
    pairs = get_json(address, "/sentences", run="text-quick")["reconstructions"]
    run = load_run(RunFolder(root / "text-quick"))
    texts = [run.examples.to_text(row) for row in run.examples.batch(torch.arange(2_000))]
    pair = next(pair for pair in pairs if pair["sentence"] in texts)
    example = get_json(address, "/example", run="text-quick", example=texts.index(pair["sentence"]))
    assert example["text"] == pair["sentence"]
    code = ",".join(map(str, example["code"]))
    answer = get_json(address, "/sentence", run="text-quick", code=code)
    assert answer["sentence"] == pair["read_back"]


def test_images_have_no_sentences(served_runs):
    _, address = served_runs
    code = ",".join("0" * 10)
    status, _, text = ask(f"{address}/sentence?run=some/ended&code={code}")
    assert status == 400
    assert "not a model of sentences" in json.loads(text)["error"]


def test_rate_conditioned_run(served_runs):
    _, address = served_runs
    found = get_json(address, "/latents", run="curve")
    low, high = found["rates"]
    assert 0 < low < high
    code = ",".join(map(str, found["code"]))
    images = {
        path: [
            image(address, path, run="curve", code=code, rate=rate, latent=0)
            for rate in (low, high, low)
        ]
        for path in ("/image", "/strip")
    }
    for shown in images.values():
        assert np.array_equal(shown[0], shown[2])
    codes = [get_json(address, "/code", run="curve", example=3, rate=rate) for rate in (low, high)]
    assert codes[0] != codes[1]
    for rate in (low / 2, 2 * high, "nan", "x"):
        status, _, text = ask(f"{address}/image?run=curve&code={code}&rate={rate}")
        assert status == 400, rate
        assert "rate must be a number" in json.loads(text)["error"]
    assert ask(f"{address}/image?run=some/ended&code={code}&rate=5")[0] == 400


def test_run_without_a_checkpoint(served_runs):
    _, address = served_runs
    status, _, text = ask(f"{address}/latents?run=some/stopped")
    assert status == 400
    assert "no checkpoint" in json.loads(text)["error"]
