"""VAEs on digits with other posteriors, priors and penalties."""

import math

import torch
import torch.nn.functional as F

from laws.data import load_array
from laws.plants.base import (
    Losses,
    Plant,
    bernoulli_loss,
    gaussian_kl,
    gaussian_kl_between,
    gaussian_log_density,
    sample_gaussian,
    split_posterior,
)
from laws.stack import MLP, Linear, Stack


class LadderVAE(Plant):
    """VAE with two layers of latents, whose lower prior depends on the upper layer.

    Sønderby et al., *Ladder variational autoencoders*, 2016.

    Args:
        stack: Stack of runs.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, batch: int = 32) -> None:
        super().__init__(stack)
        self.data, self.batch = load_array("digits"), batch
        self.lower, self.lower_head = Linear(stack, 64, 32), Linear(stack, 32, 16)
        self.upper = MLP(stack, 32, 24, 8)
        self.prior = MLP(stack, 4, 24, 16)
        self.decoder = MLP(stack, 8, 32, 64)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        hidden = self.lower(x).tanh()
        upper_mean, upper_log_variance = split_posterior(self.upper(hidden))
        upper = sample_gaussian(self.stack, upper_mean, upper_log_variance)
        mean, log_variance = split_posterior(self.lower_head(hidden))
        prior_mean, prior_log_variance = self.prior(upper).clamp(-8, 8).chunk(2, -1)
        # The posterior multiplies its own Gaussian with the prior's (precision weighting).
        precision, prior_precision = (-log_variance).exp(), (-prior_log_variance).exp()
        variance = 1 / (precision + prior_precision)
        mean = variance * (precision * mean + prior_precision * prior_mean)
        z = sample_gaussian(self.stack, mean, variance.log())
        lower_kl = gaussian_kl_between(mean, variance.log(), prior_mean, prior_log_variance)
        kl = (lower_kl + gaussian_kl(upper_mean, upper_log_variance)).mean(-1)
        return Losses(bernoulli_loss(self.decoder(z), x).mean(-1), kl, kl)


class FlowVAE(Plant):
    """VAE whose posterior is a Gaussian followed by planar flows; its KL is a sampled estimate.

    Rezende & Mohamed, *Variational inference with normalizing flows*, 2015.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        flows: Number of planar flows.
    """

    def __init__(self, stack: Stack, latents: int = 6, batch: int = 32, flows: int = 3) -> None:
        super().__init__(stack)
        self.data, self.batch = load_array("digits"), batch
        self.encoder = MLP(stack, 64, 32, 2 * latents)
        self.decoder = MLP(stack, latents, 32, 64)
        self.flows = [
            (
                stack.parameter(1, latents, scale=0.1),
                stack.parameter(latents, 1, scale=0.1),
                stack.parameter(1, 1, scale=0.0),
            )
            for _ in range(flows)
        ]

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        z = sample_gaussian(self.stack, mean, log_variance)
        log_density = gaussian_log_density(z, mean, log_variance)
        for u, w, b in self.flows:
            # Keeps w'u above -1, which makes the map invertible.
            inner = torch.bmm(u, w)
            shift = (F.softplus(inner) - 1 - inner) * w.mT / (w.square().sum(1, True) + 1e-6)
            wave = torch.baddbmm(b, z, w).tanh()
            z = z + (u + shift) * wave
            slope = (1 - wave.square()) * torch.bmm(u + shift, w)
            log_density = log_density - (1 + slope).squeeze(-1).clamp(min=1e-6).log()
        zero = torch.zeros(())
        kl = (log_density - gaussian_log_density(z, zero, zero)).mean(-1)
        return Losses(bernoulli_loss(self.decoder(z), x).mean(-1), kl, kl)


class TotalCorrelationVAE(Plant):
    """β-TCVAE: the weighted term is the total correlation of the code, estimated in the batch.

    Chen et al., *Isolating sources of disentanglement in VAEs*, 2018. The aggregated posterior is
    that of the batch, so a collapsed code has a total correlation of zero. The estimate is noisy
    and may be negative.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        kl_weight: Fixed weight of the whole KL.
    """

    def __init__(
        self, stack: Stack, latents: int = 6, batch: int = 32, kl_weight: float = 0.2
    ) -> None:
        super().__init__(stack)
        self.data, self.batch, self.kl_weight = load_array("digits"), batch, kl_weight
        self.encoder = MLP(stack, 64, 32, 2 * latents)
        self.decoder = MLP(stack, latents, 32, 64)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        z = sample_gaussian(self.stack, mean, log_variance)
        precision = (-log_variance).exp()[:, None]
        squares = (z[:, :, None] - mean[:, None]).square() * precision
        log_q = -0.5 * (squares + log_variance[:, None] + math.log(2 * math.pi))
        joint = log_q.sum(-1).logsumexp(2)
        marginals = log_q.logsumexp(2).sum(-1)
        # The logarithm of the batch size enters the joint density once, the marginals Z times.
        offset = (z.shape[-1] - 1) * math.log(self.batch)
        correlation = (joint - marginals).mean(-1) + offset
        loss = bernoulli_loss(self.decoder(z), x).mean(-1)
        loss = loss + self.kl_weight * gaussian_kl(mean, log_variance).mean(-1)
        return Losses(loss, correlation, correlation)


class ConditionalVAE(Plant):
    """VAE of the lower half of a digit given its upper half.

    Sohn et al., *Learning structured output representation using deep conditional generative
    models*, 2015, with a prior that depends on the condition.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, latents: int = 6, batch: int = 32) -> None:
        super().__init__(stack)
        self.data, self.batch = load_array("digits"), batch
        self.encoder = MLP(stack, 64, 32, 2 * latents)
        self.prior = MLP(stack, 32, 24, 2 * latents, gain=0.3)
        self.decoder = MLP(stack, 32 + latents, 32, 32)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        upper, lower = x.chunk(2, -1)
        mean, log_variance = split_posterior(self.encoder(x))
        prior = split_posterior(self.prior(upper))
        z = sample_gaussian(self.stack, mean, log_variance)
        kl = gaussian_kl_between(mean, log_variance, *prior).mean(-1)
        logits = self.decoder(torch.cat([upper, z], -1))
        return Losses(bernoulli_loss(logits, lower).mean(-1), kl, kl)


class MixturePriorVAE(Plant):
    """VAE with a learned mixture of Gaussians as prior; its KL is a sampled estimate.

    Tomczak & Welling, *VAE with a VampPrior*, 2018, with free components.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        components: Components of the prior.
        batch: Batch size.
    """

    def __init__(
        self, stack: Stack, latents: int = 6, components: int = 8, batch: int = 32
    ) -> None:
        super().__init__(stack)
        self.data, self.batch = load_array("digits"), batch
        self.encoder = MLP(stack, 64, 32, 2 * latents)
        self.decoder = MLP(stack, latents, 32, 64)
        self.means = stack.parameter(1, components, latents, scale=1.0)
        self.log_variances = stack.parameter(1, components, latents, scale=0.0)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        z = sample_gaussian(self.stack, mean, log_variance)
        inner = gaussian_log_density(z[:, :, None], self.means, self.log_variances)
        log_prior = inner.logsumexp(-1) - math.log(inner.shape[-1])
        kl = (gaussian_log_density(z, mean, log_variance) - log_prior).mean(-1)
        return Losses(bernoulli_loss(self.decoder(z), x).mean(-1), kl, kl)


class CategoricalVAE(Plant):
    """VAE with categorical latents, relaxed with Gumbel noise; the KL is to uniform categories.

    Jang et al., *Categorical reparameterization with Gumbel-softmax*, 2017.

    Args:
        stack: Stack of runs.
        latents: Number of categorical variables.
        categories: Categories of each.
        batch: Batch size.
    """

    def __init__(
        self, stack: Stack, latents: int = 6, categories: int = 8, batch: int = 32
    ) -> None:
        super().__init__(stack)
        self.data, self.batch, self.shape = load_array("digits"), batch, (latents, categories)
        self.encoder = MLP(stack, 64, 32, latents * categories)
        self.decoder = MLP(stack, latents * categories, 32, 64)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        log_q = self.encoder(x).unflatten(-1, self.shape).log_softmax(-1)
        relaxed = ((log_q + self.stack.gumbel(self.batch, *self.shape)) / 0.7).softmax(-1)
        kl = (log_q.exp() * (log_q + math.log(self.shape[1]))).sum((-1, -2)).mean(-1)
        return Losses(bernoulli_loss(self.decoder(relaxed.flatten(2)), x).mean(-1), kl, kl)
