"""Keep diffusers' AutoencoderKL at 3 nats per latent pixel, instead of a kl_weight of 1e-6.

`pip install diffusers`, then `python examples/with_diffusers.py --out kl.png`.
"""

from collections.abc import Sequence

import torch
from common import Trace, parse_arguments
from diffusers import AutoencoderKL

import controlvae as cv
from controlvae.integrations.diffusers import nats_per_latent_pixel


def draw_discs(count: int) -> torch.Tensor:
    """Return images of coloured discs on coloured backgrounds, 16 × 16, in [-1, 1]."""
    rows = torch.arange(16.0)
    centre, radius = 4 + 8 * torch.rand(count, 2, 1, 1), 2 + 4 * torch.rand(count, 1, 1)
    inside = (rows[:, None] - centre[:, 0]) ** 2 + (rows - centre[:, 1]) ** 2 < radius**2
    disc, background = torch.rand(2, count, 3, 1, 1) * 2 - 1
    return torch.where(inside[:, None], disc, background)


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__, steps=600)
    torch.manual_seed(0)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=4,
        sample_size=16,
    )
    optimiser = torch.optim.Adam(vae.parameters(), lr=2e-3)
    control = cv.Controller(cv.Auto(target=3.0))
    trace = Trace(3.0, [], [])
    for _ in range(options.steps):
        images = draw_discs(8)
        posterior = vae.encode(images).latent_dist
        # The reconstruction may have any units: Auto finds the scale of β.
        recon = (vae.decode(posterior.sample()).sample - images).abs().mean()
        rate = nats_per_latent_pixel(posterior)
        loss = recon + control.step(rate) * rate
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        trace.kl.append(rate.item())
        trace.beta.append(control.beta.item())
    trace.draw(options.out, units="nats per latent pixel")
    return trace


if __name__ == "__main__":
    main()
