"""Hold the bits per pixel of a video autoencoder, diffusers' `AutoencoderKLCogVideoX`.

    python benchmarks/hosts/diffusers_video.py --seeds 2

Latents are (batch, channels, frames, height, width). The loss has a mean absolute error, a
perceptual term on frames and a weight on the KL, for which 1e-6 is the usual value.
"""

import math

import torch
import torch.nn.functional as F
from autoencoder_terms import RandomFeatures, load_digit_images
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare
from diffusers import AutoencoderKLCogVideoX
from torch import Tensor

from controlvae.distributions import bits_per_pixel
from controlvae.integrations.diffusers import kl_per_example

_SIZE, _FRAMES, _BATCH, _LR = 16, 5, 2, 2e-3
_BITS = math.log(2) * _SIZE**2 * _FRAMES  # nats per video of one bit per pixel


def draw_videos(count: int) -> Tensor:
    """Return coloured digits that move across the frame: (count, 3, frames, height, width)."""
    digits = load_digit_images()
    videos = -torch.ones(count, 3, _FRAMES, _SIZE, _SIZE)
    for video in videos:
        digit = digits[int(torch.randint(len(digits), ()))]
        colour = torch.rand(3, 1, 1) * 2 * digit - 1
        start, stop = torch.randint(_SIZE - 8 + 1, (2, 2)).tolist()
        for frame in range(_FRAMES):
            share = frame / (_FRAMES - 1)
            row, column = (round(a + share * (b - a)) for a, b in zip(start, stop, strict=True))
            video[:, frame, row : row + 8, column : column + 8] = colour
    return videos


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    vae = AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 2,
        up_block_types=("CogVideoXUpBlock3D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=2,
        latent_channels=4,
        temporal_compression_ratio=2,
    )
    perceptual = RandomFeatures(3)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=_LR)

    def step(rule: Rule) -> tuple[float, float]:
        videos = draw_videos(_BATCH)
        posterior = vae.encode(videos).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        rate = bits_per_pixel(kl_per_example(posterior).mean(), videos)
        weight = rule(rate)
        frames, others = (x.transpose(1, 2).flatten(0, 1) for x in (decoded, videos))
        error = F.l1_loss(decoded, videos) + perceptual(frames, others)
        loss = error + weight * rate
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return rate.item(), float(weight)

    return step


TASK = Task(
    "diffusers AutoencoderKLCogVideoX (video)",
    "diffusers",
    "rate of the latents",
    "bits per pixel",
    (0.3, 0.8, 1.6),
    600,
    make_step,
    "five frames of moving digits, 16×16, mean absolute error and random features as the "
    "perceptual term; fixed kl weight 1e-6, and the nearest of 1e-6, 1e-5 and 1e-4",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__, seeds=2)
    weights = {f"kl weight {weight:g}": weight * _BITS for weight in (1e-6, 1e-5, 1e-4)}
    save_entries("diffusers_video", compare(TASK, arguments.seeds, weights), arguments.out)
