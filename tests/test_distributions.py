"""Gaussian posteriors and likelihoods against torch.distributions."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from controlvae.distributions import (
    Posterior,
    bits_per_dimension,
    bits_per_pixel,
    gaussian,
    gaussian_kl,
    nats_per_position,
    nats_per_token,
)

# Vectors, tokens or sounds, images, videos: the batch comes first, then the channels.
SHAPES = [(5, 6), (5, 6, 7), (5, 6, 3, 2), (5, 6, 2, 3, 4)]


def test_kl_and_log_density_equal_those_of_torch():
    mean, log_variance, prior_mean, prior_log_variance = torch.randn(4, 5, 3).double()
    posterior = Posterior(mean, log_variance, Posterior(prior_mean, prior_log_variance))
    q, p = (
        Normal(m, torch.exp(0.5 * v))
        for m, v in ((mean, log_variance), (prior_mean, prior_log_variance))
    )
    torch.testing.assert_close(gaussian_kl(posterior), kl_divergence(q, p))
    torch.testing.assert_close(
        gaussian_kl(posterior._replace(prior=None)),
        kl_divergence(q, Normal(torch.zeros(5, 3).double(), 1.0)),
    )
    z = torch.randn(2, 5, 3).double()
    torch.testing.assert_close(
        posterior.log_density(z) - posterior.prior.log_density(z),
        (q.log_prob(z) - p.log_prob(z)).sum(-1),
    )


def test_gaussian_equals_torch_and_fits_the_mean_square():
    torch.manual_seed(0)
    logits, x = (make(2, 3, 1, 8, 8).double() for make in (torch.randn, torch.rand))
    errors = (torch.sigmoid(logits) - x).square().flatten(1).mean(1)  # of two models
    log_variance = errors.log().requires_grad_()
    loss = gaussian(logits, x, log_variance)
    scale = errors.sqrt().view(2, 1, 1, 1, 1)
    expected = -Normal(torch.sigmoid(logits), scale).log_prob(x).flatten(2).sum(2)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), log_variance)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kl_of_latents_of_any_rank_equals_torch(shape):
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    posterior = Posterior(mean, log_variance)
    each = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0))
    per_example = torch.stack([example.sum() for example in each])
    torch.testing.assert_close(gaussian_kl(posterior), each)
    torch.testing.assert_close(gaussian_kl(posterior, "example"), per_example)
    torch.testing.assert_close(gaussian_kl(posterior, "mean"), each.sum() / 5)


def test_reduced_kl_of_half_precision_is_float32():
    posterior = Posterior(*torch.full((2, 4, 16, 32, 32), 0.1, dtype=torch.bfloat16))
    kl = gaussian_kl(posterior, "mean")
    expected = gaussian_kl(Posterior(*(each.double() for each in posterior[:2])), "mean")
    assert kl.dtype == torch.float32
    assert kl.item() == pytest.approx(expected.item(), rel=1e-5)


def test_one_latent_without_an_axis_is_its_own_sum():
    posterior = Posterior(torch.tensor([2.0, 0.0]), torch.zeros(2))
    assert gaussian_kl(posterior, "example").tolist() == [2.0, 0.0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rates_divide_by_positions_dimensions_and_pixels(shape):
    positions = math.prod(shape[2:])
    for kind in (float, lambda x: torch.tensor(x, dtype=torch.float64)):
        nats = kind(60.0)
        assert float(nats_per_position(nats, shape)) == pytest.approx(60.0 / positions)
        assert float(bits_per_pixel(nats, torch.zeros(shape))) == pytest.approx(
            60.0 / math.log(2) / positions
        )
        assert float(bits_per_dimension(nats, shape)) == pytest.approx(
            60.0 / math.log(2) / positions / 6
        )
        assert type(bits_per_pixel(nats, shape)) is type(nats)


def test_channels_may_be_the_last_axis():
    assert nats_per_position(60.0, (5, 12, 6), channel_axis=-1) == 5.0
    assert bits_per_pixel(math.log(2), (5, 2, 3, 4), channel_axis=-1) == pytest.approx(1 / 6)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_every_token_counts_once(kind):
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    for tokens in (2.0, mask, mask.sum(1)):
        assert float(nats_per_token(kind(6.0), tokens)) == 3.0
    assert nats_per_token(torch.tensor([2.0, 6.0]), mask).item() == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_kl(Posterior(torch.zeros(2, 2), torch.zeros(2, 2)), "sum"),
        lambda: nats_per_position(1.0, (8, 4), channel_axis=0),
        lambda: nats_per_position(1.0, (8, 4), channel_axis=2),
        lambda: bits_per_dimension(1.0, (8,)),
    ],
)
def test_wrong_axes_raise(call):
    with pytest.raises(ValueError, match="got"):
        call()
