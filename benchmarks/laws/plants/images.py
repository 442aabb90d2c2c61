"""Convolutional VAEs: 2D Shapes, CIFAR-10 at 16x16 and a first stage of latent diffusion."""

from torch import Tensor

from laws.data import load_array
from laws.plants.base import (
    Losses,
    Plant,
    bernoulli_loss,
    gaussian_kl,
    sample_gaussian,
    split_posterior,
)
from laws.stack import (
    Conv,
    Linear,
    PixelLinear,
    Stack,
    from_channels,
    patchify,
    to_channels,
    unpatchify,
)


class ShapesVAE(Plant):
    """Convolutional VAE on 2D Shapes, 32x32.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        channels: Channels of the two inner convolutions.
    """

    def __init__(self, stack: Stack, latents: int = 8, batch: int = 16, channels: int = 6) -> None:
        super().__init__(stack)
        self.data, self.batch, self.channels = load_array("shapes"), batch, channels
        # The first layer reads patches of 4x4 pixels, because one-channel groups are slow.
        self.patches = PixelLinear(stack, 16, channels)
        self.conv = Conv(stack, channels, channels)
        self.posterior = Linear(stack, channels * 16, 2 * latents)
        self.features = Linear(stack, latents, channels * 16)
        self.transposed = Conv(stack, channels, channels, transposed=True)
        self.pixels = PixelLinear(stack, channels, 16)

    def losses(self, step: int) -> Losses:
        (images,) = self.stack.batch(self.data, size=self.batch)
        x, runs = patchify(images.float()[..., None], 4), self.stack.runs
        hidden = to_channels(self.patches(x).relu().movedim(-1, 2))  # 8x8
        hidden = from_channels(self.conv(hidden), runs).relu()  # 4x4
        mean, log_variance = split_posterior(self.posterior(hidden.flatten(2)))
        z = sample_gaussian(self.stack, mean, log_variance)
        hidden = self.features(z).relu().unflatten(-1, (self.channels, 4, 4))
        hidden = from_channels(self.transposed(to_channels(hidden)), runs).relu()
        logits = self.pixels(hidden.movedim(2, -1))
        loss = bernoulli_loss(logits, x).sum((2, 3)).mean(-1)
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(loss, kl, kl)


def cifar_images() -> Tensor:
    """Return the images of CIFAR-10 at 16x16 in [-1, 1], channels last."""
    return load_array("cifar").float() / 127.5 - 1


class CifarVAE(Plant):
    """Convolutional VAE on CIFAR-10 at 16x16 with a vector code and squared error in sums.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        variance: Variance of the Gaussian likelihood of a pixel.
    """

    def __init__(
        self, stack: Stack, latents: int = 16, batch: int = 16, variance: float = 0.05
    ) -> None:
        super().__init__(stack)
        self.data, self.batch, self.variance = cifar_images(), batch, variance
        self.encoder = [PixelLinear(stack, 48, 12), PixelLinear(stack, 48, 16)]
        self.posterior = Linear(stack, 64, 2 * latents)
        self.features = Linear(stack, latents, 64)
        self.decoder = [PixelLinear(stack, 16, 48), PixelLinear(stack, 12, 48)]

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        hidden = self.encoder[0](patchify(x, 4)).relu()  # 4x4
        hidden = self.encoder[1](patchify(hidden)).relu()  # 2x2
        mean, log_variance = split_posterior(self.posterior(hidden.flatten(2)))
        z = sample_gaussian(self.stack, mean, log_variance)
        hidden = self.features(z).relu().unflatten(-1, (2, 2, 16))
        hidden = unpatchify(self.decoder[0](hidden)).relu()
        error = unpatchify(self.decoder[1](hidden), 4) - x
        loss = error.square().sum((2, 3, 4)).mean(-1) / (2 * self.variance)
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(loss, kl, kl)


class AutoencoderKL(Plant):
    """Fully convolutional autoencoder with the losses of latent diffusion.

    The reconstruction is a mean over pixels in [0, 1] and the KL a sum over a latent image, or its mean per
    latent pixel. In such units the weight of the KL is 1e-6 or less.

    Args:
        stack: Stack of runs.
        channels: Channels of a latent pixel.
        batch: Batch size.
        absolute: Use the mean absolute error instead of the mean squared error.
        per_pixel: Measure nats per latent pixel instead of nats per latent image.
    """

    def __init__(
        self,
        stack: Stack,
        channels: int = 4,
        batch: int = 16,
        absolute: bool = False,
        per_pixel: bool = False,
    ) -> None:
        super().__init__(stack)
        self.data, self.batch, self.absolute = cifar_images(), batch, absolute
        self.per_pixel = per_pixel
        self.encoder = PixelLinear(stack, 48, 32)
        # A wide initial code: with a weight of zero nothing would ever widen a narrow one.
        self.mean = PixelLinear(stack, 32, channels, gain=3.0)
        self.log_variance = PixelLinear(stack, 32, channels)
        self.decoder = [PixelLinear(stack, channels, 32), PixelLinear(stack, 32, 48)]

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        hidden = self.encoder(patchify(x, 4)).relu()  # 4x4 latent pixels
        mean, log_variance = self.mean(hidden), self.log_variance(hidden).clamp(-20, 8)
        z = sample_gaussian(self.stack, mean, log_variance)
        error = (unpatchify(self.decoder[1](self.decoder[0](z).relu()), 4) - x) / 2
        loss = error.abs() if self.absolute else error.square()
        kl = gaussian_kl(mean, log_variance).mean(1)
        kl = kl.mean((1, 2)) if self.per_pixel else kl.sum((1, 2))
        return Losses(loss.mean((1, 2, 3, 4)), kl, kl)
