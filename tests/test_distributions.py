"""Gaussian posteriors and likelihoods against torch.distributions."""

import torch
from torch.distributions import Normal, kl_divergence

from controlvae.distributions import Posterior, gaussian, gaussian_kl


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
