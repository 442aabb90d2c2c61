"""Tests of the certificate: coverage of its interval, its sentences, and the speed limit."""

import dataclasses
import math

import pytest
import torch

import controlvae as cv


def hold_plants(law, models, steps, noise=0.05, memory=0.9, seed=0):
    """Return the certificates of first-order plants whose noise is an AR(1) process.

    Args:
        law: Law of all plants.
        models: Number of plants.
        steps: Number of steps.
        noise: Relative standard deviation of a measurement.
        memory: Correlation of the noise of neighbouring steps.
        seed: Seed of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    control = cv.Controller(law, models=models)
    level = torch.full((models,), math.log(10.0), dtype=torch.float64)
    state = torch.randn(models, generator=generator, dtype=torch.float64)
    for _ in range(steps):
        fresh = torch.randn(models, generator=generator, dtype=torch.float64)
        state = memory * state + math.sqrt(1 - memory**2) * fresh
        weight = control.step(level.exp() * (1 + noise * state))
        level += (math.log(12.0) - 0.4 * weight.clamp(min=1e-4).log() - level) / 60
    return control.certificate()


def measure_coverage(certificates, truth):
    intervals = [(each.low, each.high) for each in certificates if each.low is not None]
    assert len(intervals) >= 0.95 * len(certificates)
    return sum(low <= truth <= high for low, high in intervals) / len(intervals)


@pytest.mark.parametrize(("noise", "memory"), [(0.05, 0.0), (0.1, 0.9)])
def test_interval_covers_the_mean_in_95_per_cent_of_200_runs(noise, memory):
    # Integral action makes the long-run mean equal to the target.
    certificates = hold_plants(cv.PI(18.0), 200, 4_000, noise, memory)
    assert all(each.settled for each in certificates)
    assert 0.92 <= measure_coverage(certificates, 18.0) <= 0.98


def train_linear_vaes(law, seeds, steps, batch=16):
    """Return the certificates of linear VAEs trained side by side, and their mean KL late on.

    Args:
        law: Law of all models.
        seeds: Number of models, each with its own data order, noise and initial weights.
        steps: Number of optimiser steps.
        batch: Examples per batch.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    mixing = normal(4, 10)
    encoder = (0.3 * normal(seeds, 10, 8)).requires_grad_()
    decoder = (0.3 * normal(seeds, 4, 10)).requires_grad_()
    optimiser = torch.optim.Adam([encoder, decoder], lr=5e-3)
    control, late = cv.Controller(law, models=seeds), []
    for step in range(steps):
        x = normal(seeds, batch, 4) @ mixing + 0.3 * normal(seeds, batch, 10)
        mean, log_variance = (x @ encoder).chunk(2, -1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean(-1)
        z = mean + (0.5 * log_variance).exp() * normal(seeds, batch, 4)
        recon = 5 * (z @ decoder - x).square().sum(-1).mean(-1)
        optimiser.zero_grad()
        (recon + control.step(kl.detach()) * kl).sum().backward()
        optimiser.step()
        if step >= steps // 2:
            late.append(kl.detach())
    return control.certificate(), torch.stack(late).mean().item()


def test_interval_covers_the_mean_of_real_training():
    certificates, truth = train_linear_vaes(cv.Auto(5.0), seeds=40, steps=3_000)
    assert all(each.settled for each in certificates)
    assert truth == pytest.approx(5.0, rel=0.01)
    assert measure_coverage(certificates, truth) >= 0.85  # 34 of 40: 95 % with sampling error


def test_certificate_is_a_frozen_record_with_sentences():
    certificate = hold_plants(cv.PI(18.0), 1, 3_000)[0]
    assert str(certificate) == certificate.verdict
    assert certificate.verdict.startswith(f"Settled since step {certificate.since:,}: ")
    assert "95 % interval" in certificate.verdict
    assert certificate.verdict.endswith("target 18.")
    assert certificate.error == pytest.approx(certificate.mean - certificate.target)
    assert certificate.mean == pytest.approx((certificate.low + certificate.high) / 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.settled = False


def test_unit_is_part_of_the_sentences():
    control = cv.Controller(cv.PI(18.0))
    for number in range(400):
        control.step(18.0 + 0.1 * (-1) ** number)
    certificate = control.certificate(unit="nats")
    assert certificate.settled
    assert " nats" in str(certificate)


def test_certificate_before_the_first_block_and_of_a_schedule():
    control, schedule = cv.Controller(cv.PI(18.0)), cv.Controller(cv.Constant(1.0))
    for _ in range(10):
        control.step(18.0)
        schedule.step(18.0)
    for certificate in (control.certificate(), schedule.certificate()):
        assert not certificate.settled
        assert certificate.mean is None
        assert certificate.verdict
    assert schedule.certificate().target is None


@pytest.mark.parametrize("target", [0.0, -3.0])
def test_targets_of_any_sign_have_a_band(target):
    law = cv.LagrangeMultiplier(target, alpha=1e-3, beta_min=-10.0, beta_init=0.0)
    control = cv.Controller(law)
    for step in range(900):
        control.step(target + 8 * math.exp(-step / 60))
    certificate = control.certificate()
    assert certificate.settled
    assert 100 < certificate.since < 500
    assert certificate.mean == pytest.approx(target, abs=0.2)


def test_noise_does_not_unsettle_a_loop():
    law, generator = cv.PI(18.0), torch.Generator().manual_seed(2)
    control = cv.Controller(law)
    for value in (18 + 9 * torch.randn(4_000, generator=generator)).tolist():
        control.step(value)
    certificate = control.certificate()
    assert certificate.settled
    assert certificate.since < 1_500


# Speed limit


def test_speed_limit_is_the_learning_rate_times_the_gradient_norm():
    layer = torch.nn.Linear(3, 2)
    kl = layer(torch.ones(4, 3)).square().sum()
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    limit = cv.speed_limit(
        kl, [*layer.parameters(), frozen, torch.ones(2, requires_grad=True)], 0.1
    )
    assert not limit.requires_grad
    assert all(p.grad is None for p in layer.parameters())
    kl.backward()  # the graph is still there
    norm = sum(p.grad.abs().sum() for p in layer.parameters())
    torch.testing.assert_close(limit, 0.1 * norm)
    with pytest.raises(ValueError, match="requires gradients"):
        cv.speed_limit(kl, [frozen], 0.1)


def test_no_step_of_adam_moves_faster_than_the_limit():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 4), torch.randn(64, 6)
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(50):
        kl = 0.5 * layer(x).square().sum(1).mean()
        limit = cv.speed_limit(kl, layer.parameters(), 1e-3)
        optimiser.zero_grad()
        (1e6 * kl).backward()  # whatever the weight
        optimiser.step()
        moved = abs(0.5 * layer(x).square().sum(1).mean() - kl)
        assert moved <= 1.01 * limit


def approach(steps=600, rate=0.05):
    """Return a controller whose measurement moved from 0 to 18 at a constant rate."""
    control = cv.Controller(cv.PI(18.0))
    for step in range(steps):
        control.step(min(18.0, rate * step))
    return control


def test_least_number_of_steps_is_the_distance_over_the_limit():
    control = approach()
    certificate = control.certificate(speed_limit=0.1)
    start = control.state_dict()["monitor_first"]
    assert certificate.speed_limit == pytest.approx((0.95 * 18 - start) / 0.1)
    assert "times as many" in str(certificate)
    pairs = [(0.0, 0.05), (6.0, torch.tensor(0.1)), (12.0, 0.1)]
    expected = 6 * (20 + 10) / 2 + (0.95 * 18 - 6) * 10
    assert control.certificate(speed_limit=pairs).speed_limit == pytest.approx(expected)
    assert control.certificate(speed_limit=0.0).speed_limit == math.inf
    assert control.certificate().speed_limit is None


@pytest.mark.parametrize("limit", [-1.0, []])
def test_wrong_speed_limits_raise(limit):
    with pytest.raises(ValueError, match="speed_limit"):
        approach().certificate(speed_limit=limit)
