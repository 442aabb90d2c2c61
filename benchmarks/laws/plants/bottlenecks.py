"""Other constrained trainings: VIB classifier, sparse codes, compression, action chunks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from laws.data import load_array
from laws.plants.base import (
    Losses,
    Plant,
    cross_entropy,
    gaussian_kl,
    sample_gaussian,
    split_posterior,
)
from laws.plants.images import cifar_images
from laws.stack import MLP, Linear, Stack


class BottleneckClassifier(Plant):
    """Classifier of digits with a variational information bottleneck.

    Alemi et al., *Deep variational information bottleneck*, 2017.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, latents: int = 8, batch: int = 64) -> None:
        super().__init__(stack)
        self.batch = batch
        self.data = load_array("digits"), load_array("digit_classes")
        self.encoder = MLP(stack, 64, 32, 2 * latents)
        self.classifier = Linear(stack, latents, 10)

    def losses(self, step: int) -> Losses:
        x, classes = self.stack.batch(*self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        logits = self.classifier(sample_gaussian(self.stack, mean, log_variance))
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(cross_entropy(logits, classes).mean(-1), kl, kl)


class SparseAutoencoder(Plant):
    """Overcomplete autoencoder of features in superposition; the controlled quantity is its L0.

    The penalty is the L1 norm of the activations. The law sees the number of active units.

    Args:
        stack: Stack of runs.
        inputs: Width of the activations.
        features: Units of the dictionary, as many as true features.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, inputs: int = 24, features: int = 64, batch: int = 64) -> None:
        super().__init__(stack)
        self.batch, self.features = batch, features
        directions = stack.constant(features, inputs, scale=1.0)
        self.directions = directions / directions.norm(dim=-1, keepdim=True)
        self.encoder = Linear(stack, inputs, features)
        self.decoder = Linear(stack, features, inputs)

    def losses(self, step: int) -> Losses:
        is_active = self.stack.uniform(self.batch, self.features) < 4 / self.features
        strengths = is_active * self.stack.uniform(self.batch, self.features)
        x = torch.bmm(strengths, self.directions)
        code = self.encoder(x).relu()
        error = (self.decoder(code) - x).square().sum(-1).mean(-1)
        norms = self.decoder.weight.norm(dim=-1)[:, None]  # no free shrinking of the code
        penalty = (code * norms).sum(-1).mean(-1)
        return Losses(error, penalty, (code > 0).float().sum(-1).mean(-1))


class Compression(Plant):
    """Learned transform coding of grey 8x8 patches with a factorised entropy model.

    Ballé et al., *End-to-end optimized image compression*, 2017. The rate is in bits per pixel,
    the distortion is the squared error on a scale of 255. The weight multiplies the rate, or the
    distortion (`weighs_distortion`); the rate then grows with the weight.

    Args:
        stack: Stack of runs.
        batch: Patches per batch.
        weighs_distortion: Put the weight on the distortion.
    """

    def __init__(self, stack: Stack, batch: int = 32, weighs_distortion: bool = False) -> None:
        super().__init__(stack)
        self.batch, self.weighs_distortion = batch, weighs_distortion
        self.data = _grey_patches()
        self.analysis, self.synthesis = Linear(stack, 64, 24), Linear(stack, 24, 64)
        self.log_gain = stack.parameter(1, 24, scale=0.0, shift=2.0)  # resolution of a channel
        self.log_scale = stack.parameter(1, 24, scale=0.0, shift=1.0)
        self.centre = stack.parameter(1, 24, scale=0.0)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        gain = self.log_gain.exp()
        code = self.analysis(x) * gain
        code = code + self.stack.uniform(*code.shape[1:]) - 0.5
        scale, gap = (-self.log_scale).exp(), code - self.centre
        # Mass of a logistic variable in the unit interval around the code.
        mass = ((gap + 0.5) * scale).sigmoid() - ((gap - 0.5) * scale).sigmoid()
        rate = -mass.clamp(min=1e-9).log().sum(-1).mean(-1) / (64 * math.log(2))
        distortion = 255**2 * (self.synthesis(code / gain) - x).square().mean((1, 2))
        if self.weighs_distortion:
            return Losses(rate, distortion, rate)
        return Losses(distortion, rate, rate)


def _grey_patches() -> Tensor:
    images = (cifar_images().mean(-1) + 1) / 2
    patches = images.view(-1, 2, 8, 2, 8).transpose(2, 3).reshape(-1, 64)
    return patches - patches.mean()


class ActionChunks(Plant):
    """Conditional VAE of chunks of actions given an observation, as in ACT.

    Zhao et al., *Learning fine-grained bimanual manipulation with low-cost hardware*, 2023: mean
    absolute error of the actions, plus the weighted KL. A chunk is a curved reach towards a goal;
    its curvature and speed are the style that the code must hold.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        length: Actions of a chunk.
    """

    def __init__(self, stack: Stack, latents: int = 8, batch: int = 32, length: int = 8) -> None:
        super().__init__(stack)
        self.batch = batch
        self.time = torch.linspace(0, 1, length)
        self.encoder = MLP(stack, 4 + 2 * length, 32, 2 * latents)
        self.decoder = MLP(stack, 4 + latents, 32, 2 * length)

    def losses(self, step: int) -> Losses:
        scene, style = self.stack.normal(self.batch, 4), self.stack.normal(self.batch, 2)
        start, goal = scene[..., None, :2], scene[..., None, 2:]
        pace = self.time ** style[..., :1].mul(0.4).exp()
        bend = style[..., 1:] * (math.pi * self.time).sin()
        across = (goal - start).flip(-1) * torch.tensor([1.0, -1.0])
        chunk = start + pace[..., None] * (goal - start) + 0.5 * bend[..., None] * across
        chunk = (chunk + 0.02 * self.stack.normal(*chunk.shape[1:])).flatten(2)
        mean, log_variance = split_posterior(self.encoder(torch.cat([scene, chunk], -1)))
        z = sample_gaussian(self.stack, mean, log_variance)
        error = F.l1_loss(self.decoder(torch.cat([scene, z], -1)), chunk, reduction="none")
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(error.mean((1, 2)), kl, kl)
