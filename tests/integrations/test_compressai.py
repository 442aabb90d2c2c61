"""Tests of the integration with CompressAI: a model of the same interface, and the real package."""

import importlib.util
import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from torch import nn

import controlvae as cv
from controlvae.errors import UserError
from controlvae.integrations.compressai import TargetRateLoss

LAW = cv.PI(1.0, ki=0.01, direction="inverse", beta_min=1e-4, beta_max=1.0)


class GaussianCodec(nn.Module):
    """Linear codec of 2 × 2 patches with a Gaussian density in place of an entropy model."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv2d(3, 6, 2, stride=2)
        self.decoder = nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.log_scale = nn.Parameter(torch.zeros(6, 1, 1))

    def forward(self, images):
        code = self.encoder(images)
        code = code + torch.rand_like(code) - 0.5
        density = torch.distributions.Normal(0.0, self.log_scale.exp())
        likelihoods = (density.cdf(code + 0.5) - density.cdf(code - 0.5)).clamp(min=1e-9)
        return {"x_hat": self.decoder(code), "likelihoods": {"y": likelihoods}}


@pytest.fixture
def compressai(monkeypatch):
    """Return CompressAI, with an empty torchvision if there is none."""
    pytest.importorskip("torch_geometric")
    if importlib.util.find_spec("transformers") is not None:
        import transformers  # noqa: F401  (remembers that there is no torchvision)
    if importlib.util.find_spec("torchvision") is None:
        torchvision, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
        torchvision.__spec__, torchvision.transforms = ModuleSpec("torchvision", None), transforms
        monkeypatch.setitem(sys.modules, "torchvision", torchvision)
        monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)
    return pytest.importorskip("compressai")


def test_terms_are_those_of_the_formula():
    torch.manual_seed(0)
    images = torch.rand(2, 3, 8, 8)
    output = GaussianCodec()(images)
    terms = TargetRateLoss(LAW)(output, images)
    bits = -output["likelihoods"]["y"].log2().sum().item() / (2 * 8 * 8)
    assert terms["bpp_loss"].item() == pytest.approx(bits, rel=1e-5)
    expected = terms["lmbda"] * 255**2 * terms["mse_loss"] + terms["bpp_loss"]
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert terms["lmbda"].item() == pytest.approx(cv.Controller(LAW).step(bits), rel=1e-5)


def test_validation_leaves_lambda_unchanged():
    criterion, codec, images = TargetRateLoss(LAW), GaussianCodec(), torch.rand(2, 3, 8, 8)
    weight = criterion(codec(images), images)["lmbda"].item()
    before = criterion.control.state_dict()
    with torch.no_grad():
        terms = criterion(codec(images), images)
    assert terms["lmbda"].item() == weight
    assert criterion.control.state_dict() == before


def test_validation_before_training_works():
    criterion, images = TargetRateLoss(0.5), torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert math.isfinite(criterion(GaussianCodec()(images), images)["loss"])


def test_resuming_changes_nothing():
    torch.manual_seed(0)
    first, codec, images = TargetRateLoss(LAW), GaussianCodec(), torch.rand(2, 3, 8, 8)
    outputs = [codec(images) for _ in range(4)]
    for output in outputs[:2]:
        first(output, images)
    second = TargetRateLoss(LAW)
    second.load_state_dict(first.state_dict())
    for output in outputs[2:]:
        assert first(output, images)["lmbda"] == second(output, images)["lmbda"]


def test_rate_of_a_codec_reaches_its_target():
    torch.manual_seed(0)
    criterion, codec = TargetRateLoss(2.0), GaussianCodec()
    optimiser = torch.optim.Adam(codec.parameters(), lr=0.01)
    rates = []
    for _ in range(1_000):
        images = torch.rand(16, 3, 4, 4)
        terms = criterion(codec(images), images)
        optimiser.zero_grad()
        terms["loss"].backward()
        optimiser.step()
        rates.append(terms["bpp_loss"].item())
    assert sum(rates[-200:]) / 200 == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    "arguments", [{"target": cv.PI(1.0, ki=0.01)}, {"target": 0.5, "metric": "l1"}], ids=str
)
def test_wrong_settings_are_refused(arguments):
    with pytest.raises(UserError):
        TargetRateLoss(**arguments)


def test_loss_equals_that_of_compressai(compressai):
    from compressai.losses import RateDistortionLoss
    from compressai.models import FactorizedPrior

    torch.manual_seed(0)
    images, net = torch.rand(1, 3, 64, 64), FactorizedPrior(N=8, M=12)
    output = net(images)
    ours = TargetRateLoss(LAW)(output, images)
    theirs = RateDistortionLoss(lmbda=ours.pop("lmbda").item())(output, images)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].item() == pytest.approx(value.item(), rel=1e-5)


def test_ms_ssim_is_the_one_of_compressai(compressai):
    from compressai.losses import RateDistortionLoss

    torch.manual_seed(0)
    images = torch.rand(1, 3, 192, 192)
    output = GaussianCodec()(images)
    ours = TargetRateLoss(LAW, metric="ms-ssim")(output, images)
    theirs = RateDistortionLoss(lmbda=ours["lmbda"].item(), metric="ms-ssim")(output, images)
    assert ours["loss"].item() == pytest.approx(theirs["loss"].item(), rel=1e-5)
