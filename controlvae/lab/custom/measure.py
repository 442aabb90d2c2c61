"""Losses of a user-supplied model averaged over a data set, in evaluation mode."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.custom.batches import cast_batch
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.custom.noise import Noise, StepSeeds

_EVALUATION_SEED = 0


class MeanLosses(NamedTuple):
    """Means over examples, in nats."""

    reconstruction: float
    kl: float
    kl_per_latent: list[float]

    @property
    def elbo(self) -> float:
        """Evidence lower bound."""
        return -(self.reconstruction + self.kl)


@torch.no_grad()
def measure_losses(
    vae: CustomVAE,
    examples: UserExamples,
    indices: Tensor,
    progress: Callable[[float], None] = lambda share: None,
) -> MeanLosses:
    """Return the losses averaged over examples, with the same noise at every call.

    Args:
        vae: Model on the device of the examples.
        examples: Examples to measure.
        indices: Indices of the examples.
        progress: Called with the share that is done.
    """
    device = examples.device
    seeds = StepSeeds(_EVALUATION_SEED, device)
    sums, latents, done = [0.0, 0.0], torch.zeros(0), 0
    devices = [device] if device.type == "cuda" else []
    with evaluation_mode(vae.module), torch.random.fork_rng(devices=devices):
        for number, part in enumerate(indices.split(examples.eval_batch_size)):
            seeds.start(number)
            batch = cast_batch(examples.full_batch(part), vae.dtype)
            losses = vae.losses(batch, Noise(device, vae.dtype))
            sums[0] += float(losses.reconstruction) * len(part)
            sums[1] += float(losses.kl) * len(part)
            found = losses.kl_per_latent.double().cpu() * len(part)
            latents = found if done == 0 else latents + found
            done += len(part)
            progress(done / len(indices))
    return MeanLosses(sums[0] / done, sums[1] / done, (latents / done).tolist())


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back into the mode that each part had."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def weights_of(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a module other weights within this context. Nothing changes if there are none."""
    if not weights:
        yield
        return
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    module.load_state_dict(weights)
    try:
        yield
    finally:
        module.load_state_dict(before)
