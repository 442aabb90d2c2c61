"""Tests of the controller under FSDP2, with two gloo processes, and under gradient scaling."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_training
import torch

import controlvae as cv

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_fully_sharded_ranks_have_the_weight_of_one_process(tmp_path):
    pytest.importorskip("torch.distributed.fsdp")
    processes = [
        subprocess.Popen(
            [sys.executable, sharded_training.__file__, str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    alone = sharded_training.train()
    first, second = (json.loads(each.communicate(timeout=300)[0]) for each in processes)
    assert first == second
    assert first == pytest.approx(alone, rel=1e-3)
    assert first[0] != first[-1]


def train_scaled(monkeypatch, *, scaled, dtype=None, steps=40, spoil=None):
    """Return the weights of a training with or without a GradScaler, and the scaler's scale."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import SmallVAE, binary_vectors

    torch.manual_seed(0)
    data, model = torch.from_numpy(binary_vectors()), SmallVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=1024.0)
    control, weights = cv.Controller(cv.Auto(8.0)), []
    for step in range(steps):
        x = data[torch.randint(len(data), (64,))]
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            recon, kl = model(x)
            if step == spoil:
                kl = kl * float("inf")
            weight = control.step(kl)
            loss = recon + weight * kl
        weights.append(weight)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    return [float(weight) for weight in weights], scaler.get_scale(), kl.item()


def test_gradient_scaling_does_not_change_the_weights(monkeypatch):
    plain, _, _ = train_scaled(monkeypatch, scaled=False)
    scaled, scale, _ = train_scaled(monkeypatch, scaled=True)
    assert scaled == pytest.approx(plain, rel=1e-5)
    assert scale == 1024.0


def test_a_step_that_the_scaler_skips_leaves_the_weight(monkeypatch):
    weights, scale, _ = train_scaled(monkeypatch, scaled=True, spoil=20)
    assert weights[20] == weights[19]
    assert scale == 512.0
    assert weights[-1] != weights[20]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_mixed_precision_reaches_the_target(monkeypatch, dtype):
    _, _, kl = train_scaled(monkeypatch, scaled=True, dtype=dtype, steps=500)
    assert kl == pytest.approx(8.0, rel=0.15)
