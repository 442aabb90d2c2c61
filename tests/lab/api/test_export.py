"""Export: programs that compute what the model does, weights, a card that a hub takes, and errors."""

import json
import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from command import controlvae, within
from custom_models import ConditionalVAE, ConvVAE, discs, groups
from photos import photos, save
from safetensors.torch import load_file
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

import controlvae as cv
from controlvae import lab
from controlvae.distributions import Posterior
from controlvae.errors import RunError, UserError
from controlvae.lab.exports import programs
from controlvae.lab.exports.parts import export_parts
from controlvae.lab.runs.data import MissingDataWarning
from controlvae.lab.runs.folder import RunFolder

SMALL = {"training.steps": 8, "training.batch": 4, "training.log_every": 2}
IMAGES = {**SMALL, "data.images": 64, "model.channels": (4, 4, 4), "model.hidden": 16}
TEXT = {**SMALL, "data.sentences": 60, "model.width": 16}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def train(path, preset="shapes2d-quick", overrides=IMAGES):
    return lab.train(preset, run=path, overrides=overrides, device="cpu", progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run over images."""
    return train(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The default export of the run."""
    folder = tmp_path_factory.mktemp("exports") / "out"
    return folder, lab.export(run.folder.path, folder)


def load_torch(folder, name):
    return torch.export.load(folder / f"{name}.pt2").module()


def load_onnx(folder, name):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def call(*inputs):
        arrays = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
        found = [torch.from_numpy(array) for array in session.run(None, arrays)]
        return found if len(found) > 1 else found[0]

    return call


LOADERS = {"torch": load_torch, "onnx": load_onnx}


@pytest.fixture(params=LOADERS)
def kind(request):
    """Return the name of a format whose packages are installed."""
    for package in ONNX_PACKAGES if request.param == "onnx" else ():
        pytest.importorskip(package)
    return request.param


def assert_same_networks(folder, kind, run, batch):
    """Assert that exported programs compute what a run's model does, on a batch of another size."""
    x = run.examples.batch(torch.arange(batch))
    with torch.no_grad():
        posterior = run.model.encode(x)
        images = torch.sigmoid(run.model.decode(posterior.mean))
        mean, log_variance = LOADERS[kind](folder, "encoder")(x)
        decoded = LOADERS[kind](folder, "decoder")(posterior.mean)
    torch.testing.assert_close(mean, posterior.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_variance, posterior.log_variance, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded, images, rtol=1e-4, atol=1e-4)


def test_programs_compute_what_the_model_does(run, kind, tmp_path):
    files = lab.export(run, tmp_path / "out", kind)
    assert_same_networks(tmp_path / "out", kind, run, 7)
    assert len(files) == 2
    assert all(0 <= file.difference <= 1e-4 for file in files)
    assert [file.size for file in files] == [file.path.stat().st_size for file in files]


def test_batch_norm_and_a_learnt_variance(kind, tmp_path):
    overrides = {
        **SMALL,
        "data.images": 64,
        "model": "ImageVAE(latents=6, channels=(4, 4, 8))",
        "objective.likelihood": "Gaussian(0.1, learnt=True)",
    }
    run = train(tmp_path / "run", overrides=overrides)
    lab.export(run, tmp_path / "out", [kind, "hub"])
    assert_same_networks(tmp_path / "out", kind, run, 3)
    assert "pixel_log_variance" in load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize(("encoder", "decoder"), [("lstm", "transformer"), ("transformer", "lstm")])
def test_models_of_sentences(encoder, decoder, kind, tmp_path):
    networks = {"model.encoder": encoder, "model.decoder": decoder}
    run = train(tmp_path / "run", "text-quick", {**TEXT, **networks})
    lab.export(run, tmp_path / "out", [kind, "hub"])
    tokens = run.examples.batch(torch.arange(7))
    length = json.loads((tmp_path / "out" / "config.json").read_text())["inputs"]["encoder"]["x"]
    padded = nn.functional.pad(tokens, (0, length["shape"][1] - tokens.shape[1]))
    with torch.no_grad():
        posterior = run.model.encode(tokens)  # padding affects nothing
        expected = run.model.decode(posterior.mean, tokens)
        mean, log_variance = LOADERS[kind](tmp_path / "out", "encoder")(padded)
        logits = LOADERS[kind](tmp_path / "out", "decoder")(posterior.mean, padded)
    torch.testing.assert_close(mean, posterior.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_variance, posterior.log_variance, rtol=1e-4, atol=1e-4)
    real = tokens != 0
    torch.testing.assert_close(
        logits[:, : tokens.shape[1]][real], expected[real], rtol=1e-4, atol=1e-4
    )
    call = {"torch": "decoder(mean, x)", "onnx": 'decoder.run(None, {"z": mean, "tokens": x})'}
    assert call[kind] in (tmp_path / "out" / "README.md").read_text()


def test_models_of_dialogs_are_refused_in_one_line(tmp_path):
    small = {**SMALL, "data.dialogs": 20, "model.context": 16}
    run = train(tmp_path / "run", "dialog-quick", small)
    with pytest.raises(UserError, match="a model of dialogs, which cannot be exported") as error:
        lab.export(run, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


class Custom(nn.Module):
    """User-supplied model, whose encoder answers in one of several ways."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.encoder, self.decoder = nn.Linear(1024, 6), nn.Linear(3, 1024)

    def encode(self, x):
        mean, log_variance = self.encoder(x.flatten(1)).chunk(2, 1)
        return self.answer(mean, log_variance)

    def decode(self, z):
        logits = self.decoder(z).view(-1, 1, 32, 32)
        return Bernoulli(logits=logits) if self.answer is distribution else logits


def distribution(mean, log_variance):
    return Independent(Normal(mean, (log_variance / 2).exp()), 1)


ANSWERS = {
    "pair": lambda mean, log_variance: (mean, log_variance),
    "Posterior": Posterior,
    "Normal": lambda mean, log_variance: Normal(mean, (log_variance / 2).exp()),
    "Independent": distribution,
}


def fit(model, path, data=None, **options):
    """Train a user-supplied model for two steps."""
    settings = {"batch": 8, "device": "cpu", "progress": False, **options}
    data = discs(32, size=32) if data is None else data
    return lab.fit(model, data, law=cv.Auto(3.0), steps=2, run=path, **settings)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_user_supplied_models(answer, kind, tmp_path):
    model = Custom(answer)
    run = fit(model, tmp_path / "run")
    lab.export(run, tmp_path / "out", [kind, "hub"])
    x = run.examples.batch(torch.arange(4))
    with torch.no_grad():
        mean, log_variance = model.encoder(x.flatten(1)).chunk(2, 1)
        logits = model.decoder(mean).view(-1, 1, 32, 32)
        found = LOADERS[kind](tmp_path / "out", "encoder")(x)
        decoded = LOADERS[kind](tmp_path / "out", "decoder")(mean)
    torch.testing.assert_close(tuple(found), (mean, log_variance), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded, logits.sigmoid(), rtol=1e-4, atol=1e-4)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == model.state_dict().keys()


def test_latents_keep_the_shape_that_the_model_gives_them(kind, tmp_path):
    run = fit(ConvVAE(), tmp_path / "run", discs(32))
    lab.export(run.folder.path, tmp_path / "out", kind)
    x = run.examples.batch(torch.arange(3))
    mean, log_variance = LOADERS[kind](tmp_path / "out", "encoder")(x)
    assert mean.shape == log_variance.shape == (3, 2, 4, 4)
    decoded = LOADERS[kind](tmp_path / "out", "decoder")(mean)
    torch.testing.assert_close(decoded, run.reconstruct(x), rtol=1e-4, atol=1e-4)


def test_only_weights_are_exported_of_a_model_that_returns_its_losses(tmp_path):
    pairs = groups(64), torch.arange(64) % 4
    run = fit(ConditionalVAE(), tmp_path / "run", pairs)
    with pytest.raises(UserError, match=r"programs need a model with encode.*format hub") as error:
        lab.export(run, tmp_path / "out")
    assert "\n" not in str(error.value)
    lab.export(run, tmp_path / "out", "hub")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert weights.keys() == run.model.state_dict().keys()
    assert "takes batches as its data set returns them" in (tmp_path / "out/README.md").read_text()


CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 4), nn.Linear(2, 16)

    def encode(self, x):
        return self.inner(x).chunk(2, 1)

    def decode(self, z):
        return self.outer(z)

model, dataset, steps = Net, torch.rand(64, 16).round(), 4
"""


def test_code_of_a_folder_is_executed_only_if_it_is_trusted(tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    trained = controlvae("train", "net.py", "--run", "run", "--device", "cpu", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    refused = controlvae("export", "run", "--out", "a", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--trust-code" in refused.stderr
    assert not (tmp_path / "a").exists()
    exported = controlvae("export", "run", "--out", "b", "--trust-code", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert load_torch(tmp_path / "b", "encoder")(torch.zeros(3, 16))[0].shape == (3, 2)


def test_a_model_that_fixes_its_batch_is_refused_in_one_line(tmp_path):
    class Fixed(Custom):
        def encode(self, x):
            return super().encode(x if len(x) == 2 else 2 * x)

    run = fit(Fixed(ANSWERS["pair"]), tmp_path / "run")
    with pytest.raises(UserError, match="cannot export the encoder for batches of any size") as e:
        lab.export(run, tmp_path / "out", "torch")
    assert "\n" not in str(e.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("shift", [0.001, math.nan])
def test_a_program_that_differs_is_refused(shift, run, tmp_path, monkeypatch):
    load = torch.export.load

    class Shifted(nn.Module):
        def __init__(self, path):
            super().__init__()
            self.real = load(path).module()

        def module(self):
            return lambda *inputs: tuple(each + shift for each in self.real(*inputs))

    monkeypatch.setattr(programs.torch.export, "load", Shifted)
    with pytest.raises(RunError, match=r"encoder.pt2 differs from the model by (0.00|nan)"):
        lab.export(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_each_program_has_its_own_weights_and_no_examples(exported, run):
    folder, _ = exported
    encoder, decoder = (torch.export.load(folder / f"{n}.pt2") for n in ("encoder", "decoder"))
    assert all(name.startswith("model.encoder.") for name in encoder.state_dict)
    assert all(name.startswith("model.decoder.") for name in decoder.state_dict)
    assert len(encoder.state_dict) + len(decoder.state_dict) == len(run.model.state_dict())
    assert not encoder.example_inputs[0][0].any()
    assert not decoder.example_inputs[0][0].any()


def test_a_model_that_looks_at_a_weight_it_does_not_compute_with(tmp_path):
    class Looking(Custom):
        def decode(self, z):
            return super().decode(z.to(self.encoder.weight.device))

    model = Looking(ANSWERS["pair"])
    lab.export(fit(model, tmp_path / "run"), tmp_path / "out", "torch")
    z = torch.randn(4, 3)
    found = load_torch(tmp_path / "out", "decoder")(z)
    torch.testing.assert_close(found, model.decode(z).sigmoid(), rtol=1e-4, atol=1e-4)


def test_weights_are_those_of_the_model_without_the_optimiser(exported, run):
    weights = load_file(exported[0] / "model.safetensors")
    state = run.model.state_dict()
    assert weights.keys() == state.keys()
    assert all(weights[name].equal(state[name]) for name in state)


def test_tied_weights_can_be_written(tmp_path):
    model = Custom(ANSWERS["pair"])
    model.again = model.encoder
    lab.export(fit(model, tmp_path / "run"), tmp_path / "out", "hub")
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))


WITHOUT_CONTROLVAE = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "controlvae":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
import numpy as np
"""


@pytest.mark.parametrize("formats", [["torch", "hub"], ["onnx", "hub"]], ids=lambda each: each[0])
def test_the_card_loads_the_model_without_controlvae(formats, run, tmp_path):
    for package in ONNX_PACKAGES if "onnx" in formats else ():
        pytest.importorskip(package)
    lab.export(run, tmp_path / "out", formats)
    card = (tmp_path / "out" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(blocks) == 2
    x = run.examples.batch(torch.arange(6))
    np.save(tmp_path / "out" / "x.npy", x.numpy())
    load, save_result = "x = np.load('x.npy')\n", "np.save('found.npy', x_mean)"
    if "torch" in formats:
        load += "import torch; x = torch.from_numpy(x)\n"
        save_result = "np.save('found.npy', x_mean.detach().numpy())"
    code = "\n".join([WITHOUT_CONTROLVAE, load, *blocks, save_result, "print(len(weights))"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == len(run.model.state_dict())
    found = torch.from_numpy(np.load(tmp_path / "out" / "found.npy"))
    torch.testing.assert_close(found, run.reconstruct(x), rtol=1e-4, atol=1e-4)


def test_the_hub_reads_the_card(run, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    shutil.copytree(run.folder.path, tmp_path / "run")
    lab.evaluate(tmp_path / "run", examples=16, iwae=0, device="cpu", progress=False)
    lab.export(tmp_path / "run", tmp_path / "out", "hub")
    card = hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license is None
    assert {"vae", "controlvae"} <= set(card.data.tags)
    values = {result.metric_type: result.metric_value for result in card.data.eval_results}
    metrics, log = RunFolder(tmp_path / "run").metrics(), RunFolder(tmp_path / "run").records()
    assert values["elbo"] == metrics["elbo"]
    assert values["kl"] == metrics["kl"]
    assert values["train_beta"] == pytest.approx(log[-1]["beta"])  # eight steps: the last line
    text = card.text
    assert "| Target, nats per example | 18 |" in text
    assert f"| ELBO, nats per example ({metrics['split']}) | {metrics['elbo']:.4g} |" in text
    assert f"| β (training, last tenth) | {log[-1]['beta']:.4g} |" in text


def test_config_has_the_settings(exported, run):
    config = json.loads((exported[0] / "config.json").read_text())
    assert config["latents"] == 10
    assert config["inputs"]["encoder"]["x"] == {"shape": ["batch", 1, 32, 32], "dtype": "float32"}
    assert config["experiment"] == run.folder.manifest()["experiment"]
    assert config["step"] == 8


def test_a_run_without_its_data_and_without_paths_of_the_machine(tmp_path):
    images = save(tmp_path / "faces", photos(20, 16, 16), [f"{n}.png" for n in range(20)])
    overrides = {**SMALL, "data.path": images, "data.size": 16, "model.channels": (4, 4)}
    train(tmp_path / "run", "images", overrides)
    lab.export(tmp_path / "run", tmp_path / "with")
    shutil.rmtree(images)
    with pytest.warns(MissingDataWarning):
        lab.export(tmp_path / "run", tmp_path / "without")
    for folder in ("with", "without"):
        for name in ("README.md", "config.json"):
            text = (tmp_path / folder / name).read_text()
            assert "faces" in text
            assert str(tmp_path) not in text


def test_parts_have_plain_layers(run):
    model = export_parts(run).model
    homes = {type(module).__module__ for module in [*model.encoder, *model.decoder]}
    assert all(home.startswith("torch.nn.modules.") for home in homes)


def test_the_command_prints_what_it_wrote(run, tmp_path):
    done = within("export", run.folder.path, "--out", "new/out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = ["README.md", "config.json", "decoder.pt2", "encoder.pt2", "model.safetensors"]
    assert [line.partition(": ")[0] for line in lines] == [f"new/out/{name}" for name in names]
    assert re.search(r"encoder.pt2: [\d.]+ kB, within [\de.-]+ of the model", done.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "out", "--format", "tensorflow"], "no export format 'tensorflow'; known: torch"),
        (["--out", "full"], "full is not empty; choose another --out"),
        (["--out", "full/file"], "full/file is a file; choose another --out"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(words, message, run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    done = within("export", run.folder.path, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == done.stderr.strip().splitlines()[0]
    assert message in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]


def test_a_run_without_a_checkpoint_is_refused(run, tmp_path):
    shutil.copytree(run.folder.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    done = within("export", "run", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "run has no checkpoint yet" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ONNX_PACKAGES)
def test_a_missing_package_is_named_with_its_installation(package, run, tmp_path, monkeypatch):
    real = programs.importlib.util.find_spec
    monkeypatch.setattr(
        programs.importlib.util,
        "find_spec",
        lambda name: None if name == package else real(name) or real("json"),
    )
    done = within("export", run.folder.path, "--out", "out", "--format", "onnx", cwd=tmp_path)
    assert done.returncode == 2
    assert f"format onnx needs {package}: pip install 'controlvae[onnx]'" in done.stderr
