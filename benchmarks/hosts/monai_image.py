"""Hold the rate of MONAI's `AutoencoderKL` next to its adversarial loss.

    python benchmarks/hosts/monai_image.py --seeds 2

The loss is that of MONAI's tutorials on latent diffusion: mean absolute error, a perceptual and an
adversarial term, and `kl_weight` = 1e-6 times the KL of an image. Images, discriminator and
adversarial loss are MONAI's.
"""

import numpy as np
import torch
import torch.nn.functional as F
from autoencoder_terms import RandomFeatures
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare
from monai.data.synthetic import create_test_image_2d
from monai.losses import PatchAdversarialLoss
from monai.networks.nets import AutoencoderKL, PatchDiscriminator
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl, nats_per_position

_SIZE, _BATCH, _LR = 16, 8, 1e-3
_ADVERSARIAL_FROM = 300
_POSITIONS = (_SIZE // 2) ** 2  # of the latents


def draw_images(random: np.random.RandomState) -> Tensor:
    """Return a batch of MONAI's synthetic images: noisy discs of different brightness."""
    images = [
        create_test_image_2d(
            _SIZE, _SIZE, num_objs=3, rad_max=5, rad_min=2, noise_max=0.1, random_state=random
        )[0]
        for _ in range(_BATCH)
    ]
    return torch.from_numpy(np.stack(images)).float().unsqueeze(1)


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    random = np.random.RandomState(seed)
    vae = AutoencoderKL(
        spatial_dims=2,
        in_channels=1,
        out_channels=1,
        channels=(8, 16),
        latent_channels=3,
        num_res_blocks=1,
        norm_num_groups=4,
        attention_levels=(False, False),
        with_encoder_nonlocal_attn=False,
        with_decoder_nonlocal_attn=False,
    )
    critic = PatchDiscriminator(spatial_dims=2, channels=8, in_channels=1, num_layers_d=1)
    adversarial = PatchAdversarialLoss(criterion="least_squares")
    perceptual = RandomFeatures(1)
    optimiser = torch.optim.Adam(vae.parameters(), lr=_LR)
    critic_optimiser = torch.optim.Adam(critic.parameters(), lr=_LR)
    number = 0

    def train_critic(images: Tensor, decoded: Tensor) -> None:
        fake = adversarial(critic(decoded.detach())[-1], False, for_discriminator=True)
        real = adversarial(critic(images)[-1], True, for_discriminator=True)
        critic_optimiser.zero_grad()
        (0.25 * (fake + real)).backward()
        critic_optimiser.step()

    def step(rule: Rule) -> tuple[float, float]:
        nonlocal number
        number += 1
        images = draw_images(random)
        decoded, mean, deviation = vae(images)
        posterior = Posterior(mean, 2 * deviation.log())
        rate = nats_per_position(gaussian_kl(posterior, "mean"), mean)
        weight = rule(rate)
        loss = F.l1_loss(decoded, images) + perceptual(decoded, images) + weight * rate
        if number > _ADVERSARIAL_FROM:
            loss = loss + 0.5 * adversarial(critic(decoded)[-1], True, for_discriminator=False)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if number > _ADVERSARIAL_FROM:
            train_critic(images, decoded)
        return rate.item(), float(weight)

    return step


TASK = Task(
    "MONAI AutoencoderKL",
    "monai",
    "rate of the latents",
    "nats per latent pixel",
    (1.0, 3.0, 6.0),
    800,
    make_step,
    "MONAI's synthetic discs, 16×16, mean absolute error, its patch discriminator, random features "
    "as the perceptual term; fixed kl_weight 1e-6, and the nearest of 1e-6, 1e-5 and 1e-4",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__, seeds=2)
    weights = {f"kl_weight {weight:g}": weight * _POSITIONS for weight in (1e-6, 1e-5, 1e-4)}
    save_entries("monai_image", compare(TASK, arguments.seeds, weights), arguments.out)
