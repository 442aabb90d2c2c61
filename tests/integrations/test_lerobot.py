"""Tests of the integration with LeRobot: a policy of the same interface, and the real ACT."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import controlvae as cv
from controlvae.errors import UserError
from controlvae.integrations.lerobot import control_kl

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "hosts"
LAW = cv.PI(2.0, ki=0.01, ema=0.3)


def read_state(control):
    return {name: float(value) for name, value in control.state_dict().items()}


class FakeModel(nn.Module):
    """Model that returns actions and, in training, the parameters of its latent distribution."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, batch):
        mean, log_variance = self.encoder(batch["action"]).chunk(2, 1)
        if not self.training:
            return self.decoder(torch.zeros_like(mean)), (None, None)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.decoder(code), (mean, log_variance)


class FakePolicy(nn.Module):
    """Policy whose loss reads the weight from its configuration, as that of ACT does."""

    def __init__(self, use_vae=True):
        super().__init__()
        self.config = SimpleNamespace(use_vae=use_vae, kl_weight=10.0)
        self.model = FakeModel()

    def forward(self, batch):
        actions, (mean, log_variance) = self.model(batch)
        l1 = (actions - batch["action"]).abs().mean()
        if mean is None:
            return l1, {"l1_loss": l1.item()}
        kl = (-0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp())).sum(-1).mean()
        loss = l1 + kl * self.config.kl_weight
        return loss, {"l1_loss": l1.item(), "kld_loss": kl.item()}


def train(policy, steps, seed=0):
    optimiser = torch.optim.Adam(policy.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    kls, weights = [], []
    for _ in range(steps):
        loss, terms = policy.forward({"action": torch.randn(16, 6, generator=generator)})
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        kls.append(terms["kld_loss"])
        weights.append(policy.config.kl_weight)
    return kls, weights


def test_weight_follows_the_kl_of_the_same_batch():
    torch.manual_seed(0)
    policy = FakePolicy()
    control_kl(policy, LAW)
    kls, weights = train(policy, 20)
    float_control = cv.Controller(LAW)
    expected = [float_control.step(kl) for kl in kls]
    assert weights == pytest.approx(expected, rel=1e-4)
    assert all(isinstance(weight, float) for weight in weights)


def test_evaluation_keeps_the_weight():
    policy = FakePolicy()
    control = control_kl(policy, LAW)
    train(policy, 5)
    before = read_state(control)
    policy.eval()
    policy.forward({"action": torch.randn(16, 6)})
    assert read_state(control) == pytest.approx(before, nan_ok=True)


def test_state_dict_restores_the_controller(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    policy = FakePolicy()
    control = control_kl(policy, LAW)
    train(policy, 10)
    safetensors.save_model(policy, str(tmp_path / "model.safetensors"))

    loaded = FakePolicy()
    loaded_control = control_kl(loaded, LAW)
    safetensors.load_model(loaded, str(tmp_path / "model.safetensors"))
    resumed = FakePolicy()
    resumed_control = control_kl(resumed, LAW, checkpoint=tmp_path)
    for other in (loaded_control, resumed_control):
        assert read_state(other) == pytest.approx(read_state(control), nan_ok=True)
    assert loaded.config.kl_weight == resumed.config.kl_weight == policy.config.kl_weight


def test_checkpoint_without_controller_is_refused(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_model(FakePolicy(), str(tmp_path / "model.safetensors"))
    with pytest.raises(UserError, match="control_kl"):
        control_kl(FakePolicy(), LAW, checkpoint=tmp_path)


def test_policy_without_latent_is_refused():
    with pytest.raises(UserError, match="use_vae"):
        control_kl(FakePolicy(use_vae=False), LAW)


def test_law_on_the_reconstruction_is_refused():
    with pytest.raises(UserError):
        control_kl(FakePolicy(), cv.Geco(1.0))


@pytest.fixture
def act(monkeypatch):
    """The benchmark of the real ACT policy, with an empty torchvision if there is none."""
    pytest.importorskip("lerobot")
    finders = list(sys.meta_path)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import lerobot_act

    yield lerobot_act
    if finders != sys.meta_path:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def test_act_policy_reaches_its_target(act, monkeypatch):
    monkeypatch.setattr(act, "STEPS", 300)
    trace = act.train(0, law=cv.PI(2.0, ki=0.001, kp=0.05))
    assert sum(trace["kl"][-50:]) / 50 == pytest.approx(2.0, rel=0.2)


def test_act_checkpoint_contains_the_controller(act, tmp_path):
    policy = act.make_policy().train()
    control = control_kl(policy, LAW)
    policy.forward(act.draw_batch(torch.Generator().manual_seed(0)))
    policy.save_pretrained(tmp_path)

    plain = type(policy).from_pretrained(tmp_path)  # for a robot: without a controller
    assert plain.config.kl_weight == pytest.approx(float(control.beta))
    resumed = control_kl(plain, LAW, checkpoint=tmp_path)
    assert read_state(resumed) == pytest.approx(read_state(control), nan_ok=True)
