"""Hold the bits per pixel of diffusers' `AutoencoderKL` next to perceptual and adversarial terms.

    python benchmarks/hosts/diffusers_image.py --seeds 2

The loss is that of diffusers' `train_autoencoderkl.py`: squared error and perceptual distance
summed over an image, `kl_scale` times the KL of an image, and an adversarial term scaled by the
ratio of gradients at the last layer. The script's default `kl_scale` is 1e-6.
"""

import math

import torch
import torch.nn.functional as F
from autoencoder_terms import PatchCritic, RandomFeatures, crop_photographs
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare
from diffusers import AutoencoderKL

from controlvae.distributions import bits_per_pixel
from controlvae.integrations.diffusers import kl_per_example

_SIZE, _LR = 16, 1e-3
_ADVERSARIAL_FROM = 300  # the script's `disc_start`
_BITS = math.log(2) * _SIZE**2  # nats per image of one bit per pixel


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=4,
        sample_size=_SIZE,
        mid_block_add_attention=False,
    )
    perceptual, critic = RandomFeatures(3), PatchCritic(3, _LR)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=_LR)
    last_layer = vae.decoder.conv_out.weight
    number = 0

    def step(rule: Rule) -> tuple[float, float]:
        nonlocal number
        number += 1
        images = crop_photographs(_SIZE) * 2 - 1
        posterior = vae.encode(images).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        error = F.mse_loss(decoded, images) + 0.5 * perceptual(decoded, images)
        error = error * images[0].numel()
        rate = bits_per_pixel(kl_per_example(posterior).mean(), images)
        weight = rule(rate)
        loss = error + weight * rate
        if number > _ADVERSARIAL_FROM:
            fooling = -critic(decoded).mean()
            (of_error,) = torch.autograd.grad(error, last_layer, retain_graph=True)
            (of_fooling,) = torch.autograd.grad(fooling, last_layer, retain_graph=True)
            ratio = of_error.norm() / (of_fooling.norm() + 1e-4)
            loss = loss + ratio.clamp(0, 1e4).detach() * fooling
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        if number > _ADVERSARIAL_FROM:
            critic.train_step(images, decoded)
        return rate.item(), float(weight)

    return step


TASK = Task(
    "diffusers AutoencoderKL",
    "diffusers",
    "rate of the latents",
    "bits per pixel",
    (0.5, 1.5, 3.0),
    800,
    make_step,
    "16×16 crops of photographs, the loss of train_autoencoderkl.py with random features as the "
    "perceptual term; fixed kl_scale 1e-6, and the nearest of kl_scale 1e-6, 1e-3 and 1e-1",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__, seeds=2)
    weights = {f"kl_scale {scale:g}": scale * _BITS for scale in (1e-6, 1e-3, 1e-1)}
    save_entries("diffusers_image", compare(TASK, arguments.seeds, weights), arguments.out)
