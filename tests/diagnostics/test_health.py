"""Tests of `Health` against closed forms, quadrature and torch.distributions."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats

import controlvae as cv
from controlvae.diagnostics.collapse import count_used_latents
from controlvae.metrics.information import aggregate_divergence


def batches(seed=0, examples=600, latents=5):
    """Return batches of means and log-variances; the last batch is smaller."""
    noise = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0, 2, latents)
    mean = scale * torch.randn(examples, latents, generator=noise) + 0.3
    log_variance = -scale + 0.1 * torch.randn(examples, latents, generator=noise)
    return list(zip(mean.split(70), log_variance.split(70), strict=True))


def test_running_sums_equal_direct_computation():
    health = cv.Health()
    for mean, log_variance in batches():
        health.update(mean, log_variance)
    mean, log_variance = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    kl = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).mean(0)
    report = health.read()
    assert report.kl_per_latent == pytest.approx(kl.tolist(), rel=1e-4)
    assert report.active_units == cv.metrics.active_units(mean) == 4
    assert report.used_latents == count_used_latents(kl.tolist()) == 5
    assert report.mutual_information == pytest.approx(
        cv.metrics.mutual_information(mean, log_variance), rel=1e-4
    )
    assert report.examples == 600


def test_buffer_holds_the_last_examples():
    health = cv.Health(keep=100)
    for mean, log_variance in batches():
        health.update(mean, log_variance)
    mean, log_variance = (torch.cat(parts)[-100:] for parts in zip(*batches(), strict=True))
    information = health.read().mutual_information
    # The ring buffer has another order, so each example gets other noise.
    assert information.lower == pytest.approx(
        cv.metrics.mutual_information(mean, log_variance).lower, abs=0.3
    )
    assert information.examples == 100


@pytest.mark.parametrize("sizes", [(9, 1), (12, 1, 1), (3, 4, 7, 2)], ids=str)
def test_batches_larger_than_the_buffer_keep_their_end(sizes):
    health, numbers = cv.Health(keep=5), torch.arange(float(sum(sizes)))[:, None]
    for batch in numbers.split(list(sizes)):
        health.update(batch, torch.zeros_like(batch))
    assert sorted(health._recent[0].flatten().tolist()) == numbers[-5:].flatten().tolist()


def test_loss_units_are_checked_on_the_first_batch_with_a_loss():
    health, mean = cv.Health(), torch.randn(8, 3)
    health.update(mean, torch.zeros_like(mean))
    health.update(mean, torch.zeros_like(mean), kl=mean.square().sum() / 2)
    assert "a sum over the batch" in health.read().terms[0].description
    health.reset()
    health.update(torch.zeros(8, 3), torch.zeros(8, 3), kl=0.0)
    assert health.read().effective_beta is None
    assert "units are unknown" in health.read().terms[0].description


def test_a_rejected_batch_does_not_count_as_first():
    health, mean = cv.Health(), torch.randn(8, 3)
    with pytest.raises(ValueError, match="kl must be"):
        health.update(mean, torch.zeros_like(mean), kl=torch.ones(8))
    health.update(mean, torch.zeros_like(mean), kl=mean.square().sum(1).mean() / 2)
    assert len(health.read().terms) == 1


@pytest.mark.parametrize("offset", [0.5, 1.0, 2.0])
def test_mutual_information_of_one_noisy_bit(offset):
    """With q(z|x) = N(±a, 1), I(x; z) = H(z) - H(z|x) by quadrature."""
    mean = offset * torch.tensor([-1.0, 1.0]).repeat(2_000)[:, None]
    found = cv.metrics.mutual_information(mean, torch.zeros_like(mean))
    density = lambda z: (stats.norm.pdf(z, -offset) + stats.norm.pdf(z, offset)) / 2  # noqa: E731
    entropy = integrate.quad(lambda z: -density(z) * math.log(density(z)), -12, 12)[0]
    exact = entropy - 0.5 * math.log(2 * math.pi * math.e)
    assert found.lower == pytest.approx(exact, abs=0.03)
    assert exact <= found.upper


def test_mutual_information_of_gaussian_codes_lies_between_its_bounds():
    """If μ ~ N(0, s²) and σ² = 1 - s², q(z) = p(z) and I(x; z) = KL = -½ log(1 - s²) per latent."""
    torch.manual_seed(0)
    spread, latents = 0.9, 3
    mean = spread * torch.randn(3_000, latents)
    exact = -0.5 * latents * math.log(1 - spread**2)
    found = cv.metrics.mutual_information(mean, torch.full_like(mean, math.log(1 - spread**2)))
    assert exact - 0.15 < found.lower < found.upper + 0.05
    assert found.upper == pytest.approx(exact, abs=0.05)
    far = cv.metrics.mutual_information(torch.randn(50, 40), torch.full((50, 40), -12.0))
    assert far.lower == pytest.approx(math.log(50))
    mean = mean.double()
    # The information does not depend on the origin or the unit of z.
    for scale, shift in ((1.0, 1e8), (1e10, 0.0)):
        moved = cv.metrics.mutual_information(
            scale * mean + shift, torch.full_like(mean, math.log(scale**2 * (1 - spread**2)))
        )
        assert moved.upper == pytest.approx(found.upper)
    # Expanded squares would cancel here.
    for log_variance, shift in ((-40.0, 0.0), (-60.0, 0.0), (-40.0, 100.0)):
        found = cv.metrics.mutual_information(
            torch.randn(50, 4).double() + shift, torch.full((50, 4), log_variance)
        )
        assert found.lower == pytest.approx(math.log(50))


def test_aggregate_divergence_equals_the_gaussian_kl():
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(torch.tensor([0.0, 1.5]), torch.tensor([1.0, 2.0])),
        torch.distributions.Normal(0.0, 1.0),
    )
    assert aggregate_divergence(
        torch.tensor([0.0, 1.5]), torch.tensor([1.0, 4.0])
    ).tolist() == pytest.approx(exact.tolist())


def loss_of(kind, x, logits, mean, log_variance):
    """Return both terms of the loss with a common mistake, and the effective β."""
    summed = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
    each = -0.5 * (1 + log_variance - mean**2 - log_variance.exp())
    kl = each.sum(1).mean()
    squared = F.mse_loss(torch.sigmoid(logits), x)
    return {
        "right": (summed, kl, 1.0),
        "mean over pixels": (F.binary_cross_entropy_with_logits(logits, x), kl, 48.0),
        "mean squared error": (squared, kl, 48.0),
        "mean over latents": (summed, each.mean(), 1 / 6),
        "sum over the batch": (summed, each.sum(), 32.0),
        "both per pixel": (F.binary_cross_entropy_with_logits(logits, x), kl / 48, 1.0),
        "sign": (summed, -kl, -1.0),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("right", None),
        ("mean over pixels", "β = 48"),
        ("mean squared error", "β = 48"),
        ("sign", "wrong sign"),
        ("mean over latents", "β = 0.1667"),
        ("sum over the batch", "β = 32"),
        ("both per pixel", "same factor"),
    ],
)
def test_units_are_recognised(kind, words):
    torch.manual_seed(0)
    x, logits = torch.rand(32, 3, 4, 4).round(), torch.randn(32, 3, 4, 4)
    mean, log_variance = torch.randn(32, 6), torch.randn(32, 6) - 1
    reconstruction, kl, beta = loss_of(kind, x, logits, mean, log_variance)
    output = torch.sigmoid(logits) if kind == "mean squared error" else logits
    health = cv.Health()
    health.update(mean, log_variance, kl=kl, reconstruction=reconstruction, x=x, output=output)
    report = health.read()
    assert report.effective_beta == pytest.approx(beta)
    assert report.alarms == [] if words is None else words in report.alarms[0]
    assert all(alarm in " ".join(str(health).split()) for alarm in report.alarms)


@pytest.mark.parametrize("channels_first", [False, True])
def test_token_loss_units_are_recognised(channels_first):
    torch.manual_seed(0)
    tokens, logits = torch.randint(1, 50, (16, 9)), torch.randn(16, 9, 50)
    tokens[:, 6:] = 0
    mean, log_variance = torch.randn(16, 4), torch.randn(16, 4)
    flat = logits.flatten(0, 1), tokens.flatten()
    output = logits.movedim(-1, 1) if channels_first else logits
    for loss, factor in (
        (F.cross_entropy(*flat), 1 / 9),
        (F.cross_entropy(*flat, ignore_index=0), 1 / 6),
        (F.cross_entropy(*flat, ignore_index=0, reduction="sum") / 16, 1.0),
    ):
        health = cv.Health()
        health.update(mean, log_variance, reconstruction=loss, x=tokens, output=output)
        assert health.read().terms[0].factor == pytest.approx(factor)
    health.reset()
    health.update(mean, log_variance, reconstruction=loss)
    assert "not checked" in str(health)


def test_units_of_one_latent_and_one_example_are_correct():
    mean = torch.tensor([[1.5]])
    health = cv.Health()
    for _ in range(2):
        health.update(mean, 0 * mean, kl=1.125, reconstruction=4.0, x=0 * mean, output=mean + 0.5)
    assert [term.factor for term in health.read().terms] == [1.0, 1.0]


def test_log_sigma_in_place_of_log_variance_is_detected():
    for _ in range(200):
        mean, log_sigma = torch.randn(32, 6), torch.randn(32, 6) - 1
        kl = torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, log_sigma.exp()), torch.distributions.Normal(0.0, 1.0)
        )
        health = cv.Health()
        health.update(mean, log_sigma, kl=kl.sum(1).mean())
        assert "log σ" in health.read().terms[0].description


def test_collapse_distance_from_prior_and_nan_raise_alarms():
    health = cv.Health()
    health.update(1e-3 * torch.randn(64, 8), torch.zeros(64, 8))
    assert "collapsed" in health.read().alarms[0]
    health.reset()
    health.update(3 + 0.3 * torch.randn(64, 2), torch.full((64, 2), -1.0))
    assert "samples" in health.read().alarms[0]
    health.update(torch.full((64, 2), math.nan), torch.zeros(64, 2))
    assert "NaN" in str(health)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [(((8,), (8,)), "(batch, latents)"), (((8, 2), (8, 3)), "(8, 3)")],
)
def test_invalid_posterior_shapes_are_rejected(shapes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cv.Health().update(*(torch.zeros(shape) for shape in shapes))


def test_updates_in_inference_mode_and_training_mix():
    health = cv.Health()
    with torch.inference_mode():
        health.update(torch.randn(8, 2), torch.zeros(8, 2))
    health.update(torch.randn(8, 2), torch.zeros(8, 2))
    assert health.read().examples == 16


def test_update_never_waits_for_the_device():
    """Meta tensors have no values, so an update that reads one would fail."""
    health = cv.Health()
    meta = torch.zeros(4, 3, device="meta")
    for _ in range(3):
        health.update(meta, meta, kl=meta.sum(), reconstruction=meta.sum(), x=meta, output=meta)


def test_null_kl_is_not_a_used_latent():
    assert count_used_latents([3.0, None, 0.001]) == 1
