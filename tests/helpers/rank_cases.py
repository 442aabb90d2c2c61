"""Trainings in float64 that groups of processes run for `tests/lab/ranks`."""

import warnings

import torch
from custom_models import ConditionalVAE, LaplaceVAE, groups
from small import OBJECTIVES
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import controlvae as cv
from controlvae.lab.config import override, preset
from controlvae.lab.custom.definition import define
from controlvae.lab.custom.engine import CustomEngine
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.ranks.group import RankGroup

CPU = torch.device("cpu")
BATCH = 7  # neither 2 nor 4 ranks get equal slices
LONG, SHORT = 200, 12
IMAGES = ["data.images=64", "model.channels=(4,4,4)", "model.latents=3"]
TWO = (1, 2)


def prepare():
    """Let this process compute in float64 throughout."""
    warnings.simplefilter("ignore", cv.laws.TuningWarning)
    torch.set_default_dtype(torch.float64)
    decode = BinaryImages.decode
    BinaryImages.decode = lambda self, rows: decode(self, rows).double()


def on(sizes):
    """Run a case on groups of these sizes alone."""

    def mark(case):
        case.sizes = sizes
        return case

    return mark


def train(rank, size, sets, steps, name="shapes2d-quick"):
    """Return the measurements of every step and the final weights of a built-in model."""
    experiment = override(preset(name), [*sets, f"training.batch={BATCH}"])
    engine = EagerEngine([experiment], load_dataset(experiment.data), CPU, (rank, size))
    return run(engine, steps)


def run(engine, steps):
    """Return the measurements of every step and the final weights of an engine's first model."""
    rows = [engine.advance(steps // 2), engine.advance(steps - steps // 2)]
    result = {"rows": torch.cat(rows)[:, 0], **engine.snapshot(0)}
    engine.close()
    return result


def case_image(rank, size):
    """Train the small convolutional VAE."""
    sets = [*IMAGES, "model.hidden=16", "control=Auto(1.0)"]
    return train(rank, size, sets, LONG)


@on(TWO)
def case_batch_norm(rank, size):
    """Train with the batch norms of the paper's image network and a learnt variance."""
    sets = [*IMAGES[:1], *OBJECTIVES["batch norm, learnt variance"], "control=Auto(1.0)"]
    return train(rank, size, sets, SHORT)


@on(TWO)
def case_critic(rank, size):
    """Train with the critic of FactorVAE, which shuffles latents across the batch."""
    return train(rank, size, [*IMAGES, *OBJECTIVES["critic"], "control=PI(0.3)"], SHORT)


@on(TWO)
def case_beta_tc(rank, size):
    """Train with a term that compares all examples of the batch."""
    return train(rank, size, [*IMAGES, *OBJECTIVES["beta-tc"]], SHORT)


@on(TWO)
def case_free_bits(rank, size):
    """Train with free bits of the KL averaged over the batch, and clipped gradients."""
    sets = [*IMAGES, *OBJECTIVES["free bits, falling rate"], "optimiser.clip=1.0"]
    return train(rank, size, sets, SHORT)


@on(TWO)
def case_kl_weights(rank, size):
    """Train with scheduled KL weights and a delayed weight."""
    return train(rank, size, [*IMAGES, *OBJECTIVES["KL weights, delayed"]], SHORT)


@on(TWO)
def case_text(rank, size):
    """Train a text model, whose dropout masks belong to the whole batch. It is in float32."""
    sets = ["data.sentences=64", "model.width=16", "model.heads=2", "model.inner=16"]
    sets += ["model.latents=4", "model.blocks=1", "model.dropout=0.2"]
    torch.set_default_dtype(torch.float32)
    try:
        return train(rank, size, sets, SHORT, "text-quick")
    finally:
        torch.set_default_dtype(torch.float64)


class NormVAE(nn.Module):
    """Batch norm behind a layer without bias, dropout, and noise of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.down = nn.Sequential(
            nn.Linear(32, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)
        )
        self.up = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 32))

    def encode(self, x):
        return self.down(x + 0.1 * torch.randn_like(x)).chunk(2, dim=1)

    def decode(self, z):
        return self.up(z)


class Numbers(Dataset):
    """Rows with a random shift, as an augmentation has."""

    def __init__(self):
        self.rows = groups(64).double()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index].roll(int(torch.randint(3, ())))


class Stream(IterableDataset):
    """Rows without indices: 23 in an epoch, so that the last batch of ten has three."""

    def __iter__(self):
        return iter(groups(32).double()[:23])


def fit(rank, size, model, data, steps, sharded=False, **settings):
    """Return the measurements of every step and the final weights of a user's model."""
    return run(make_engine(rank, size, model, data, sharded, **settings), steps)


def make_engine(rank, size, model, data, sharded=False, **settings):
    """Return the engine of a user's model."""
    settings = {"law": cv.Auto(1.0), "steps": 1_000, **settings}
    defined = define(model, data, **settings)
    group = RankGroup(rank, size, rank, size)
    trainers = defined.task.make_trainers(
        [defined.experiment(CPU)], CPU, print, group, sharded and size > 1
    )
    return CustomEngine(trainers)


def case_custom(rank, size):
    """Train a user's model with batch norm, dropout, its own noise, AdamW and clipping."""
    options = {"optimiser": torch.optim.AdamW, "clip": 5.0, "ema_weights": 0.9}
    return fit(rank, size, NormVAE, groups(64).double(), LONG, batch=BATCH, **options)


def case_stream(rank, size):
    """Train on a stream whose last batch has fewer examples than four ranks."""
    loader = DataLoader(Stream(), batch_size=10)
    return fit(rank, size, NormVAE, loader, 30)


@on(TWO)
def case_transforms(rank, size):
    """Train on a data set with random transforms."""
    return fit(rank, size, NormVAE, Numbers(), SHORT, batch=BATCH)


@on(TWO)
def case_terms(rank, size):
    """Train a model that returns its own terms and receives a source of noise."""
    data = groups(64).double(), torch.arange(64) % 4
    return fit(rank, size, ConditionalVAE, data, SHORT, batch=BATCH)


@on(TWO)
def case_distribution(rank, size):
    """Train a model with a posterior that is not Gaussian, sampled by torch.distributions."""
    return fit(rank, size, LaplaceVAE, groups(64).double(), SHORT, batch=BATCH)


@on(TWO)
def case_sharded(rank, size):
    """Train a sharded model, and continue from a snapshot that one process or two took."""
    model, data = NormVAE(), groups(64).double()
    make = {"batch": BATCH, "sharded": True, "ema_weights": 0.9, "clip": 5.0}
    first = make_engine(rank, size, model, data, **make)
    rows = [first.advance(SHORT)]
    second = make_engine(rank, size, model, data, **make)
    second.restore(0, SHORT, first.snapshot(0))
    rows.append(second.advance(SHORT))
    # A shard of every weight, and whole tensors in the snapshot.
    kinds = {type(each).__name__ for each in second.trainers[0].vae.module.parameters()}
    assert kinds == ({"DTensor"} if size > 1 else {"Parameter"}), kinds
    return {"rows": torch.cat(rows)[:, 0], **second.snapshot(0)}
