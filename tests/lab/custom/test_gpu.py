"""User-supplied models on a GPU: captured steps equal eager ones, and fall back with a reason."""

import pytest
import torch
from custom_models import Batches, ConditionalVAE, ConvVAE, PlainVAE, Rows, TokenVAE, discs, groups
from torch import nn

import controlvae as cv
from controlvae import lab

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LABELS = torch.arange(512) % 4


def fit(model, data, path, capture=True, **options):
    notes = []
    torch.manual_seed(0)
    settings = {"law": cv.Auto(3.0), "steps": 60, "batch": 16, "log_every": 5, "precision": "fp32"}
    run = lab.fit(
        model(),
        data,
        run=path,
        capture=capture,
        device="cuda",
        progress=False,
        **{**settings, **options},
    )
    return run, notes


CASES = {
    "vectors": (PlainVAE, groups(), {}),
    "batch norm and dropout": (ConvVAE, discs(), {"ema_weights": 0.9}),
    "terms": (ConditionalVAE, (groups(), LABELS), {}),
    "tokens": (TokenVAE, torch.randint(0, 11, (256, 6)), {}),
    "workers": (PlainVAE, Rows(groups(), noise=0.1), {"workers": 2}),
    "AdamW and a schedule": (
        PlainVAE,
        groups(),
        {
            "optimiser": torch.optim.AdamW,
            "scheduler": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 60),
            "clip": 1.0,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_equal_eager_ones(name, tmp_path):
    model, data, options = CASES[name]
    eager, _ = fit(model, data, tmp_path / "eager", capture=False, **options)
    captured, _ = fit(model, data, tmp_path / "captured", **options)
    assert captured.log["kl"] == pytest.approx(eager.log["kl"], rel=1e-3)
    assert captured.log["reconstruction"] == pytest.approx(eager.log["reconstruction"], rel=1e-3)


def test_seeds_train_side_by_side_as_alone(tmp_path):
    options = {"steps": 60, "batch": 16, "log_every": 5, "precision": "fp32", "device": "cuda"}
    for model, data in ((PlainVAE, groups()), (ConvVAE, discs())):
        path = tmp_path / model.__name__
        runs = lab.fit(model, data, law=cv.Auto(3.0), run=path, seeds=3, progress=False, **options)
        alone = lab.fit(
            model, data, law=cv.Auto(3.0), run=path / "one", seed=3, progress=False, **options
        )
        assert runs[2].log["kl"] == pytest.approx(alone.log["kl"], rel=1e-3)


class ReadsValues(PlainVAE):
    def encode(self, x):
        mean, log_variance = super().encode(x)
        return mean * (2.0 if float(mean.detach().sum()) > 1e9 else 1.0), log_variance


class Counts(PlainVAE):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def encode(self, x):
        self.calls += 1
        mean, log_variance = super().encode(x)
        return mean * (1 + 0.01 * self.calls), log_variance


class NoBuffers(PlainVAE):
    def __init__(self):
        super().__init__()
        self.constant = torch.ones(4)  # stays on the host

    def encode(self, x):
        mean, log_variance = super().encode(x)
        return mean * self.constant, log_variance


@pytest.mark.parametrize(
    ("model", "reason"),
    [(ReadsValues, "reads values from the GPU"), (Counts, "plain attributes")],
)
def test_a_step_that_cannot_be_captured_is_trained_eagerly(model, reason, tmp_path, capsys):
    torch.manual_seed(0)
    lab.fit(model(), groups(), law=cv.Auto(3.0), steps=30, batch=16, run=tmp_path / "run")
    assert reason in capsys.readouterr().err


def test_constants_on_the_host_are_named(tmp_path):
    with pytest.raises(cv.errors.UserError, match="register_buffer"):
        lab.fit(NoBuffers(), groups(), law=cv.Auto(3.0), steps=30, batch=16, run=tmp_path / "run")


def test_a_stopped_run_resumes_on_the_gpu(tmp_path):
    import signal

    def stop(progress):
        if progress.step >= 23:
            signal.raise_signal(signal.SIGINT)

    whole, _ = fit(PlainVAE, groups(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(PlainVAE, groups(), tmp_path / "run", callbacks=[stop])
    run = lab.resume(tmp_path / "run", PlainVAE(), groups(), device="cuda", progress=False)
    assert run.log["kl"] == pytest.approx(whole.log["kl"], rel=1e-3)


def test_batches_of_several_shapes_have_a_graph_each(tmp_path):
    batches = [groups()[n * 16 : n * 16 + (16 if n % 2 else 8)] for n in range(32)]
    run = lab.fit(
        PlainVAE, Batches(batches), law=cv.Auto(3.0), steps=60, run=tmp_path / "run", progress=False
    )
    assert run.step == 60
    assert isinstance(run.model, nn.Module)
