"""Hold the rate of an audio autoencoder, diffusers' `AutoencoderOobleck` of Stable Audio.

    python benchmarks/hosts/diffusers_audio.py --seeds 2

The loss has the terms of Stable Audio's autoencoder without its discriminator: a distance of
spectra at several resolutions, the absolute error, and a weight of 1e-4 (2.0) or 1e-6 (1.0) on
`AutoencoderOobleck`'s own `kl()`, which is twice the KL of a latent frame.
"""

import torch
import torch.nn.functional as F
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare
from diffusers import AutoencoderOobleck
from torch import Tensor

from controlvae.integrations.diffusers import nats_per_latent_pixel

_SAMPLES, _BATCH, _LR = 256, 8, 1e-3
_WINDOWS = (32, 128)


def draw_tones(count: int) -> Tensor:
    """Return decaying tones with four harmonics and a random onset: (count, 1, samples)."""
    time = torch.arange(_SAMPLES) - torch.randint(_SAMPLES // 8, (count, 1))
    pitch = 0.02 * 4 ** torch.rand(count, 1)  # cycles per sample
    harmonics = torch.rand(count, 4, 1) / torch.arange(1, 5)[:, None]
    phases = torch.arange(1, 5)[:, None] * pitch[:, None] * time[:, None]
    waves = (harmonics * torch.sin(2 * torch.pi * phases)).sum(1)
    return torch.where(time >= 0, waves * torch.exp(-time / 100.0), 0.0).unsqueeze(1)


def spectral_distance(sounds: Tensor, others: Tensor) -> Tensor:
    """Return the mean distance of log magnitudes at several resolutions."""
    distances = []
    for window in _WINDOWS:
        spectra = [
            torch.stft(
                x[:, 0], window, window // 4, window=torch.hann_window(window), return_complex=True
            )
            for x in (sounds, others)
        ]
        magnitudes, reference = (spectrum.abs().clamp(min=1e-2).log() for spectrum in spectra)
        distances.append(F.l1_loss(magnitudes, reference))
    return torch.stack(distances).mean()


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    vae = AutoencoderOobleck(
        encoder_hidden_size=8,
        downsampling_ratios=[4, 4],
        channel_multiples=[1, 2],
        decoder_channels=8,
        decoder_input_channels=4,
        audio_channels=1,
    )
    optimiser = torch.optim.AdamW(vae.parameters(), lr=_LR, betas=(0.8, 0.99))

    def step(rule: Rule) -> tuple[float, float]:
        sounds = draw_tones(_BATCH)
        posterior = vae.encode(sounds).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        rate = nats_per_latent_pixel(posterior)
        weight = rule(rate)
        error = spectral_distance(decoded, sounds) + 0.1 * F.l1_loss(decoded, sounds)
        loss = error + weight * rate
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return rate.item(), float(weight)

    return step


TASK = Task(
    "diffusers AutoencoderOobleck (audio)",
    "diffusers",
    "rate of the latents",
    "nats per latent frame",
    (2.0, 4.0, 8.0),
    800,
    make_step,
    "256 samples of synthetic tones, spectral and absolute error; fixed weight 1e-4 (Stable Audio "
    "2.0), and the nearest of 1e-4, 1e-3 and 1e-2",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__, seeds=2)
    weights = {f"kl weight {weight:g}": 2 * weight for weight in (1e-4, 1e-3, 1e-2)}
    save_entries("diffusers_audio", compare(TASK, arguments.seeds, weights), arguments.out)
