"""Tests of the integrations with the real frameworks; skipped if one is not installed."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from law_cases import LAWS, TRACE

import controlvae as cv
from controlvae.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples"
LAW = cv.PI(2.0, ki=0.01, ema=0.3)


@pytest.fixture(autouse=True)
def _small_models_on_one_thread(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def replay_weight(windows, law=LAW):
    """Return the weight after each optimiser step, computed on floats."""
    control = cv.Controller(law)
    return [control.step(sum(window) / len(window)) for window in windows]


@pytest.mark.parametrize(
    ("module", "framework", "install"),
    [
        ("lightning", "pytorch_lightning", "lightning"),
        ("pythae", "pythae.trainers", "pythae"),
        ("jax", "jax", "jax"),
        ("huggingface", "transformers", "transformers accelerate"),
        ("scvi", "scvi.train", "scvi-tools"),
        ("trl", "transformers", "trl"),
        ("stable_baselines3", "stable_baselines3", "stable-baselines3"),
    ],
)
def test_missing_framework_error_names_the_install_command(module, framework, install, monkeypatch):
    for name in (framework, "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    if module == "scvi":  # it imports the integration with Lightning
        monkeypatch.setitem(
            sys.modules, "controlvae.integrations.lightning", SimpleNamespace(KLControl=object)
        )
    monkeypatch.delitem(sys.modules, f"controlvae.integrations.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=f": pip install {install}$"):
        importlib.import_module(f"controlvae.integrations.{module}")


# examples


@pytest.mark.filterwarnings("error::controlvae.errors.ControlWarning")
@pytest.mark.parametrize(
    ("name", "package", "steps", "within"),
    [
        ("plain_loop", "torch", 400, 0.05),
        ("plain_vib", "sklearn", 600, 0.1),
        ("plain_tcvae", "sklearn", 600, 0.15),
        ("with_lightning", "lightning", 400, 0.05),
        ("with_huggingface", "transformers", 400, 0.05),
        ("with_accelerate", "accelerate", 400, 0.05),
        ("with_jax", "jax", 400, 0.05),
        ("with_pythae", "pythae", 400, 0.05),
        ("with_diffusers", "diffusers", 300, 0.1),
        ("with_scvi", "scvi", 600, 0.1),
        ("with_cleanrl", "torch", 1_200, 0.1),
    ],
)
def test_example_reaches_its_target(tmp_path, name, package, steps, within):
    pytest.importorskip(package)
    trace = importlib.import_module(name).main(
        ["--steps", str(steps), "--out", str(tmp_path / "kl.png")]
    )
    assert trace.final_kl() == pytest.approx(trace.target, rel=within)
    assert (tmp_path / "kl.png").read_bytes().startswith(b"\x89PNG")


# JAX


def jax_betas(law, trace):
    jax = pytest.importorskip("jax")
    from controlvae.integrations.jax import init_state, update_state

    def step(state, kl):
        state = update_state(law, state, kl)
        return state, state

    return jax.jit(lambda values: jax.lax.scan(step, init_state(law), values)[1])(
        jax.numpy.asarray(trace)
    )


@pytest.mark.parametrize(
    "law", [*LAWS, cv.Auto(cv.Linear(2.0, 18.0, steps=5)), cv.Geco(18.0, alpha=1e-3)], ids=repr
)
def test_jax_equals_the_float_law(law):
    jax = pytest.importorskip("jax")
    alone = cv.Controller(law)
    expected = [(alone.step(x), alone.state)[1] for x in TRACE]
    with jax.enable_x64(True):
        double = jax_betas(law, TRACE)
    assert double.beta.dtype == "float64"
    single = jax_betas(law, TRACE)
    assert single.beta.dtype == "float32"
    for field in type(expected[0])._fields:
        wanted = [getattr(state, field) for state in expected]
        assert getattr(double, field).tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-14)
        assert getattr(single, field).tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_jax_maps_over_models_without_a_gradient():
    jax = pytest.importorskip("jax")
    from controlvae.integrations.jax import init_state, update_state

    law, kls = cv.PI(18.0), jax.numpy.array([10.0, 20.0, math.nan])
    mapped = jax.jit(jax.vmap(lambda state, kl: update_state(law, state, kl)))(
        init_state(law, models=3), kls
    )
    assert mapped.beta.tolist() == update_state(law, init_state(law, models=3), kls).beta.tolist()
    assert mapped.beta.tolist() == pytest.approx(
        [cv.Controller(law).step(float(kl)) for kl in kls], rel=1e-5
    )
    slope = jax.grad(lambda kl: update_state(law, init_state(law), kl).beta * kl)(20.0)
    assert float(slope) == pytest.approx(cv.Controller(law).step(20.0), rel=1e-6)


# Lightning


def lightning_fit(
    steps,
    callbacks=(),
    ckpt=None,
    buffer=False,
    skipped=None,
    unlogged=(),
    on_epoch=None,
    **trainer_settings,
):
    """Train with seven batches per epoch and without noise.

    Returns:
        (KL, weight) of every micro-batch, the callback and the trainer.
    """
    pytest.importorskip("lightning")
    import lightning.pytorch as lightning

    from controlvae.integrations.lightning import KLControl

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.seen = torch.nn.Linear(3, 3), []
            if buffer:
                self.register_buffer("beta", torch.zeros(()))
            else:
                self.beta = 0.0

        def training_step(self, x, number):
            if number == skipped:
                return None
            kl = 2 * self.layer(x).square().sum(dim=1).mean()
            self.seen.append((kl.item(), float(self.beta)))
            if number not in unlogged or self.current_epoch == 0:
                self.log("kl", kl, on_step=True, on_epoch=on_epoch)
            loss = (self.layer(x) - 3).square().sum(dim=1).mean() + self.beta * kl
            assert loss.dtype == torch.float32
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02)

    data = torch.randn(28, 3, generator=torch.Generator().manual_seed(1))
    control, module = KLControl(LAW), Module()
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        callbacks=[control, *callbacks],
        **{**quiet, **trainer_settings},
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=ckpt)
    return module.seen, control, trainer


def test_lightning_updates_once_per_optimiser_step():
    seen, control, trainer = lightning_fit(6, accumulate_grad_batches=3, enable_checkpointing=False)
    # Windows of 3, 3 and 1 batches per epoch.
    windows = [seen[at:to] for at, to in [(0, 3), (3, 6), (6, 7), (7, 10), (10, 13), (13, 14)]]
    after = replay_weight([[kl for kl, _ in window] for window in windows])
    for given, window in zip([0.0, *after], windows, strict=False):
        assert [beta for _, beta in window] == pytest.approx([given] * len(window), rel=1e-6)
    assert float(control.controller.state.step) == trainer.global_step == 6
    assert trainer.callback_metrics["control/beta"].item() == pytest.approx(after[-1], rel=1e-6)
    assert trainer.callback_metrics["control/kl_target"].item() == 2.0


@pytest.mark.parametrize("skipped", [0, 3])
def test_lightning_ignores_a_skipped_batch(skipped):
    seen, control, _ = lightning_fit(7, skipped=skipped, enable_checkpointing=False)
    assert len(seen) == 6
    assert float(control.controller.beta) == pytest.approx(
        replay_weight([[kl] for kl, _ in seen])[-1], rel=1e-6
    )


@pytest.mark.parametrize("on_epoch", [None, True])
@pytest.mark.parametrize("unlogged", [(1, 2, 5), (0, 6)])
def test_lightning_does_not_update_without_a_logged_kl(on_epoch, unlogged):
    seen, control, trainer = lightning_fit(
        21, unlogged=unlogged, on_epoch=on_epoch, enable_checkpointing=False
    )
    logged = [kl for number, (kl, _) in enumerate(seen) if number < 7 or number % 7 not in unlogged]
    assert (trainer.global_step, float(control.controller.state.step)) == (21, len(logged))
    assert float(control.controller.beta) == pytest.approx(
        replay_weight([[kl] for kl in logged])[-1], rel=1e-6
    )


def test_lightning_resuming_changes_nothing(tmp_path):
    from_lightning = pytest.importorskip("lightning.pytorch.callbacks")
    straight, control, _ = lightning_fit(14, enable_checkpointing=False)
    saver = from_lightning.ModelCheckpoint(
        tmp_path, every_n_train_steps=7, save_top_k=-1, filename="{step}"
    )
    lightning_fit(7, callbacks=[saver])
    resumed, after, _ = lightning_fit(
        14, ckpt=str(tmp_path / "step=7.ckpt"), enable_checkpointing=False
    )
    assert resumed == straight[7:]
    assert after.state_dict() == control.state_dict()


def test_lightning_misuse_raises():
    lightning = pytest.importorskip("lightning.pytorch")
    from controlvae.integrations.lightning import KLControl

    with pytest.raises(UserError, match="Geco"):
        KLControl(cv.Geco(5.0))
    with pytest.raises(TypeError, match="must be a law"):
        KLControl(18.0)
    assert KLControl(cv.Geco(5.0), kl="recon").kl == "recon"

    trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    with pytest.raises(UserError, match="beta"):
        KLControl(LAW).on_train_start(trainer, lightning.LightningModule())


RANKS = """
import sys, json, warnings
warnings.filterwarnings("ignore")
import test_integrations as t
from lightning.pytorch import Callback
class Write(Callback):
    def on_train_end(self, trainer, module):
        control = trainer.callbacks[0].controller
        with open(f"{sys.argv[1]}/{trainer.global_rank}.json", "w") as file:
            beta, step = float(control.beta), float(control.state.step)
            json.dump({"seen": module.seen, "beta": beta, "step": step}, file)
t.lightning_fit(4, buffer=True, callbacks=[Write()], strategy="ddp_fork", devices=2,
                accumulate_grad_batches=2, enable_checkpointing=False)
"""


def test_lightning_ranks_have_the_same_weight(tmp_path):
    pytest.importorskip("lightning")
    subprocess.run(
        [sys.executable, "-c", RANKS, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=120,
    )
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    micro = [
        (one[0] + other[0]) / 2 for one, other in zip(first["seen"], second["seen"], strict=True)
    ]
    assert first["seen"][0][0] != second["seen"][0][0]  # each rank has its own data
    assert [beta for _, beta in first["seen"]] == [beta for _, beta in second["seen"]]
    assert first["beta"] == second["beta"]
    assert first["beta"] == pytest.approx(
        replay_weight([micro[at : at + 2] for at in (0, 2, 4, 6)])[-1], rel=1e-6
    )
    assert first["step"] == second["step"] == 4


# Hugging Face


def huggingface_fit(folder, steps, resume=None, by_items=False, use_model_init=False, **settings):
    """Train with seven batches per epoch and without noise.

    Returns:
        KL of every micro-batch, and the trainer.
    """
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from controlvae.integrations.huggingface import ControlledTrainer

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.seen = torch.nn.Linear(3, 3), []

        def forward(self, x, labels=None, **kwargs):
            kl = 2 * self.layer(x).square().sum(dim=1).mean()
            if self.training:
                self.seen.append(kl.item())
            loss = (self.layer(x) - 3).square().sum(dim=1)
            return {
                "loss": loss.sum() / kwargs["num_items_in_batch"] if by_items else loss.mean(),
                "kl": kl,
            }

    data = torch.randn(28, 3, generator=torch.Generator().manual_seed(1))
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=0.02,
        logging_steps=1,
        report_to=[],
        lr_scheduler_type="constant",
        disable_tqdm=True,
        use_cpu=True,
        optim="sgd",
        **settings,
    )
    rows = [{"x": row, "labels": 0} if by_items else {"x": row} for row in data]
    model = {"model_init": Model} if use_model_init else {"model": Model()}
    trainer = ControlledTrainer(
        **model, args=arguments, train_dataset=rows, eval_dataset=rows[:4], law=LAW
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.seen, trainer


def test_huggingface_updates_once_per_optimiser_step(tmp_path):
    seen, trainer = huggingface_fit(tmp_path, 6, gradient_accumulation_steps=3, save_strategy="no")
    windows = [seen[at:to] for at, to in [(0, 3), (3, 6), (6, 7), (7, 10), (10, 13), (13, 14)]]
    after = replay_weight(windows)
    logged = [line["beta"] for line in trainer.state.log_history if "beta" in line]
    assert logged == pytest.approx(after, rel=1e-6)
    assert float(trainer.controller.state.step) == trainer.state.global_step == 6
    before = trainer.controller.state_dict()
    trainer.evaluate()
    assert trainer.controller.state_dict() == before


def test_huggingface_normalises_by_items_or_batches_alike(tmp_path):
    """A model may divide its loss by the items of the optimiser step; Trainer then does not."""
    settings = {"gradient_accumulation_steps": 3, "save_strategy": "no"}
    plain, _ = huggingface_fit(tmp_path, 6, **settings)
    counting, _ = huggingface_fit(tmp_path, 6, by_items=True, **settings)
    assert counting == pytest.approx(plain, rel=1e-6)


def test_huggingface_loss_contains_the_weighted_kl(tmp_path):
    seen, trainer = huggingface_fit(tmp_path, 3, save_strategy="no")
    loss, outputs = trainer.compute_loss(
        trainer.model.eval(), {"x": torch.ones(2, 3)}, return_outputs=True
    )
    weight = replay_weight([[kl] for kl in seen])[-1]
    assert loss.item() == pytest.approx((outputs["loss"] + weight * outputs["kl"]).item(), rel=1e-5)


def test_huggingface_model_init_restarts_the_law(tmp_path):
    settings = {"gradient_accumulation_steps": 3, "save_strategy": "no"}
    seen, trainer = huggingface_fit(tmp_path, 5, by_items=True, use_model_init=True, **settings)
    rows = torch.stack([row["x"] for row in trainer.eval_dataset])
    parts = trainer.model.eval()(rows, num_items_in_batch=len(rows))
    whole = (parts["loss"] + trainer.controller.beta * parts["kl"]).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(whole, rel=1e-5)
    first = trainer.controller.state_dict()
    trainer.train()
    assert trainer.model.seen == seen
    assert trainer.controller.state_dict() == first


def test_huggingface_resuming_changes_nothing(tmp_path):
    straight, trainer = huggingface_fit(tmp_path / "straight", 10, save_strategy="no")
    huggingface_fit(tmp_path / "parts", 5, save_strategy="steps", save_steps=5)
    resumed, after = huggingface_fit(
        tmp_path / "parts", 10, str(tmp_path / "parts/checkpoint-5"), save_strategy="no"
    )
    assert resumed == straight[5:]
    assert {k: float(v) for k, v in after.controller.state_dict().items()} == {
        k: float(v) for k, v in trainer.controller.state_dict().items()
    }


def test_accelerate_saves_and_restores_a_controller(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator, control = accelerate.Accelerator(cpu=True), cv.Controller(LAW)
    accelerator.register_for_checkpointing(control)
    for kl in (9.0, 8.0):
        control.step(torch.tensor(kl))
    accelerator.save_state(str(tmp_path))
    expected = control.step(torch.tensor(7.0)).item()
    control.step(torch.tensor(100.0))
    accelerator.load_state(str(tmp_path))
    assert control.step(torch.tensor(7.0)).item() == expected


# Keras

KERAS = """
import sys
import keras, numpy as np
import controlvae as cv
import with_keras
from common import binary_vectors
from controlvae.integrations.keras import KLControlLayer

trace = with_keras.main(["--steps", "250", "--out", sys.argv[1] + "/kl.png"])
assert abs(trace.final_kl() - 8) < 0.8, trace.final_kl()

# In fit, the layer equals the float law on the same KL. There is no moving average, so `kl` is
# the KL of the batch.
law = cv.PI(cv.Staircase(2.0, 6.0, 0.5, every=4), ki=0.01)
model, seen = with_keras.VAE(law), with_keras.Trace(2.0, [], [])
data = binary_vectors()[:512]
model.compile(keras.optimizers.Adam(0.01), loss=with_keras.summed_cross_entropy)
recorder = with_keras.Recorder(model.control, seen)
history = model.fit(data, data, batch_size=64, epochs=2, verbose=0, callbacks=[recorder])
alone = cv.Controller(law)
np.testing.assert_allclose(seen.beta, [alone.step(kl) for kl in seen.kl], rtol=1e-4, atol=1e-6)
assert abs(history.history["beta"][-1] - seen.beta[-1]) < 1e-6, history.history
# Four steps to an increment, eight to an epoch.
assert history.history["target"] == [3.0, 4.0], history.history

before = keras.ops.convert_to_numpy(model.control.state)
model.evaluate(data, data, verbose=0)
np.testing.assert_array_equal(keras.ops.convert_to_numpy(model.control.state), before)

kl = keras.Input((), batch_size=4)
saved = keras.Model(kl, KLControlLayer(law)(kl))
saved.layers[-1].state.assign(before)
saved.save(sys.argv[1] + "/model.keras")
layer = keras.saving.load_model(sys.argv[1] + "/model.keras").layers[-1]
assert layer.law == law, layer.law
np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.state), before)

# Version 0.1 saved thirteen fields; see controlvae.laws.states.LEGACY_FIELDS.
old = dict(step=4, seen=3, held=1, target=17, measured=16, error=1, p=2, i=3, d=0, output=5, beta=5)
layer.load_own_variables({"0": np.array([*old.values(), 0, 0], "float32")})
assert layer.stats() == {"target": 17.0, "kl": 16.0, "beta": 5.0}, layer.stats()
"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_controls_saves_and_restores(tmp_path, backend):
    pytest.importorskip(backend)
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KERAS, str(tmp_path)],
        check=False,
        cwd=EXAMPLES,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "kl.png").exists()


# pythae


def pythae_trainer(folder, model, law=None, **settings):
    from pythae.data.datasets import BaseDataset
    from pythae.trainers import BaseTrainerConfig

    from controlvae.integrations.pythae import ControlledPythaeTrainer

    data = BaseDataset(
        torch.rand(64, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(64)
    )
    config = BaseTrainerConfig(
        str(folder), per_device_train_batch_size=16, no_cuda=True, **settings
    )
    return ControlledPythaeTrainer(model, data, training_config=config, law=law or cv.Auto(2.0))


@pytest.mark.parametrize("name", ["VAE", "BetaVAE", "VAE_IAF_", "VAMP"])
def test_pythae_saves_the_last_model_and_the_controller(tmp_path, name):
    models = pytest.importorskip("pythae.models")
    config = getattr(models, name + "Config")(input_dim=(8,), latent_dim=2)
    model = getattr(models, name.rstrip("_"))(config)
    trainer = pythae_trainer(tmp_path, model, num_epochs=2, steps_saving=2)
    trainer.train()
    (run,) = tmp_path.iterdir()
    final = models.AutoModel.load_from_folder(str(run / "final_model"))
    for one, other in zip(final.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)
    saved = json.loads((run / "checkpoint_epoch_2/control.json").read_text())
    assert saved["step"] == 8
    assert saved["beta"] == float(trainer.controller.beta)
    assert 0 < saved["beta"] != 1


@pytest.mark.parametrize(("name", "own"), [("IWAE", {"number_samples": 3}), ("INFOVAE_MMD", {})])
def test_pythae_rejects_other_losses(tmp_path, name, own):
    models = pytest.importorskip("pythae.models")
    kind = getattr(models, name)
    model = kind(kind.__init__.__annotations__["model_config"](input_dim=(8,), latent_dim=2, **own))
    with pytest.raises(UserError, match=name):
        pythae_trainer(tmp_path, model, num_epochs=1).train()


def test_pythae_rejects_a_law_of_the_reconstruction(tmp_path):
    models = pytest.importorskip("pythae.models")
    model = models.VAE(models.VAEConfig(input_dim=(8,), latent_dim=2))
    with pytest.raises(UserError, match="Geco"):
        pythae_trainer(tmp_path, model, law=cv.Geco(5.0))


# diffusers


@pytest.mark.parametrize("shape", [(5, 8, 9), (5, 8, 6, 7), (5, 8, 3, 6, 7)], ids=str)
def test_nats_per_latent_pixel_equal_torchs_divergence(shape):
    vae = pytest.importorskip("diffusers.models.autoencoders.vae")
    from torch.distributions import Normal, kl_divergence

    from controlvae.integrations.diffusers import kl_per_example, nats_per_latent_pixel

    moments = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    mean, log_variance = moments.chunk(2, dim=1)
    kl = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0))
    posterior = vae.DiagonalGaussianDistribution(moments)
    torch.testing.assert_close(kl_per_example(posterior), kl.flatten(1).sum(1))
    rate = nats_per_latent_pixel(posterior)
    torch.testing.assert_close(rate, kl.sum() / (5 * math.prod(shape[2:])))
    if len(shape) == 4:  # of the three ranks, diffusers sums the axes of images alone
        torch.testing.assert_close(kl_per_example(posterior), posterior.kl())
    certain = vae.DiagonalGaussianDistribution(moments, deterministic=True)
    assert nats_per_latent_pixel(certain).item() == 0.0


def test_sounds_of_diffusers_have_the_gaussian_kl():
    oobleck = pytest.importorskip("diffusers.models.autoencoders.autoencoder_oobleck")
    from controlvae.integrations.diffusers import nats_per_latent_pixel

    moments = torch.randn(5, 8, 9, generator=torch.Generator().manual_seed(0))
    posterior = oobleck.OobleckDiagonalGaussianDistribution(moments)
    torch.testing.assert_close(nats_per_latent_pixel(posterior), posterior.kl() / 2)
