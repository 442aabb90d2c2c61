"""Trainings in float64 that groups of processes run for `tests/lab/ranks`."""

import torch
from small import OBJECTIVES

from controlvae.lab.config import override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine

CPU = torch.device("cpu")
BATCH = 7  # neither 2 nor 4 ranks get equal slices
IMAGES = ["data.images=64", "model.channels=(4,4,4)", "model.latents=3"]
TEXT = ["model.latents=4", "model.embedding=8", "model.hidden=8"]

torch.set_default_dtype(torch.float64)
_decode = BinaryImages.decode
BinaryImages.decode = lambda self, rows: _decode(self, rows).double()


def train(rank, size, name, sets, steps):
    """Return the measurements of every step and the final weights of a built-in model."""
    experiment = override(preset(name), [*sets, f"training.batch={BATCH}"])
    engine = EagerEngine([experiment], load_dataset(experiment.data), CPU, (rank, size))
    rows = [engine.advance(steps // 2), engine.advance(steps - steps // 2)]
    result = {"rows": torch.cat(rows)[:, 0], **engine.snapshot(0)}
    engine.close()
    return result


def case_image(rank, size):
    """Train the small convolutional VAE for 200 steps."""
    return train(rank, size, "shapes2d-quick", [*IMAGES, "model.hidden=16"], 200)


def case_batch_norm(rank, size):
    """Train with batch norm and a learnt variance for 200 steps."""
    sets = OBJECTIVES["batch norm, learnt variance"]
    return train(rank, size, "shapes2d-quick", [*IMAGES[:1], *sets], 200)


def case_critic(rank, size):
    """Train with the critic of FactorVAE, which shuffles latents across the batch."""
    sets = [*IMAGES, *OBJECTIVES["critic"], "control=PI(0.3)"]
    return train(rank, size, "shapes2d-quick", sets, 30)


def case_beta_tc(rank, size):
    """Train with a term that compares all examples of the batch."""
    return train(rank, size, "shapes2d-quick", [*IMAGES, *OBJECTIVES["beta-tc"]], 30)


def case_free_bits(rank, size):
    """Train with free bits of the KL averaged over the batch, and clipped gradients."""
    sets = [*IMAGES, *OBJECTIVES["free bits, falling rate"], "optimiser.clip=1.0"]
    return train(rank, size, "shapes2d-quick", sets, 30)


def case_kl_weights(rank, size):
    """Train with scheduled KL weights and a delayed weight."""
    return train(rank, size, "shapes2d-quick", [*IMAGES, *OBJECTIVES["KL weights, delayed"]], 30)
