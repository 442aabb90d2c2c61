"""User-supplied models and data for the tests of `lab.fit`."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Independent, Laplace, Normal
from torch.utils.data import Dataset, IterableDataset


def groups(count=512, size=32, seed=0):
    """Return binary rows of 16 groups."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.rand(16, size, generator=generator).repeat(count // 16, 1)
    return (torch.rand(count, size, generator=generator) < means).float()


def discs(count=256, size=16, channels=1, seed=0):
    """Return grey images of discs, (count, channels, size, size), in [0, 1]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    centre, radius = rng.uniform(4, size - 4, (count, 2)), rng.uniform(2, 4, (count, 1, 1))
    inside = (x - centre[:, :1, None]) ** 2 + (y - centre[:, 1:, None]) ** 2 < radius**2
    return torch.from_numpy(np.repeat(inside[:, None], channels, 1).astype(np.float32))


class PlainVAE(nn.Module):
    """Encode and decode, logits."""

    def __init__(self, size=32, hidden=32, latents=4):
        super().__init__()
        self.encoder_net = nn.Sequential(
            nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, 2 * latents)
        )
        self.decoder_net = nn.Sequential(
            nn.Linear(latents, hidden), nn.Tanh(), nn.Linear(hidden, size)
        )

    def encode(self, x):
        return self.encoder_net(x.flatten(1)).chunk(2, dim=1)

    def decode(self, z):
        return self.decoder_net(z)


class ConvVAE(nn.Module):
    """Convolutions, batch norm and dropout; a spatial code of 2 x 4 x 4; sigmoid outputs."""

    def __init__(self, channels=1):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(channels, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 4, 2, 1)
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2, 8, 4, 2, 1),
            nn.Dropout(0.1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, channels, 4, 2, 1),
            nn.Sigmoid(),
        )

    def encode(self, x):
        mean, log_variance = self.down(x).chunk(2, dim=1)
        return {"mean": mean, "logvar": log_variance}

    def decode(self, z):
        return self.up(z)


class DistributionVAE(PlainVAE):
    """Encode returns a distribution, decode returns one too."""

    def encode(self, x):
        mean, log_variance = super().encode(x)
        return Independent(Normal(mean, torch.exp(log_variance / 2)), 1)

    def decode(self, z):
        return Independent(Normal(super().decode(z), 0.5), 1)


class LaplaceVAE(PlainVAE):
    """A posterior that is not Gaussian, with its own prior."""

    def encode(self, x):
        mean, log_scale = super().encode(x)
        return Independent(Laplace(mean, torch.exp(log_scale)), 1)

    def prior(self):
        return Independent(Laplace(torch.zeros(4), torch.ones(4)), 1)


class ConditionalVAE(PlainVAE):
    """`terms` of a pair of data and labels."""

    def __init__(self):
        super().__init__(size=32 + 4)

    def terms(self, batch, noise):
        x, y = batch
        joined = torch.cat([x, F.one_hot(y, 4).to(x.dtype)], dim=1)
        mean, log_variance = self.encode(joined)
        z = mean + torch.exp(0.5 * log_variance) * noise
        loss = F.binary_cross_entropy_with_logits(self.decode(z)[:, :32], x, reduction="none")
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
        return loss.sum(1), kl


class DiscreteVAE(PlainVAE):
    """A categorical code by Gumbel-softmax; a dictionary batch; the KL per example."""

    def __init__(self):
        super().__init__(latents=8)
        self.encoder_net[-1] = nn.Linear(32, 8)

    def terms(self, batch, noise):
        x = batch["image"]
        logits = self.encoder_net(x)
        gumbel = -torch.log(-torch.log(noise.uniform(len(x), 8) * 0.999 + 5e-4))
        z = torch.softmax((logits + gumbel) / 0.5, dim=1)
        loss = F.binary_cross_entropy_with_logits(self.decode(z), x, reduction="none").sum(1)
        posterior = Categorical(logits=logits)
        return {"reconstruction": loss, "kl": np.log(8) - posterior.entropy()}


class HubVAE(PlainVAE):
    """A forward that returns loss and kl, as Hugging Face's models do."""

    def forward(self, pixel_values, labels=None):
        mean, log_variance = self.encode(pixel_values)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        loss = F.binary_cross_entropy_with_logits(self.decode(z), pixel_values, reduction="none")
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
        return {"loss": loss.sum(1).mean(), "kl": kl.sum(1).mean()}


class TokenVAE(nn.Module):
    """A GRU over tokens with a categorical likelihood."""

    def __init__(self, vocabulary=11, width=16, latents=4, length=6):
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder_rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2 * latents)
        self.decoder_rnn = nn.GRU(latents, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def encode(self, x):
        _, state = self.encoder_rnn(self.embedding(x))
        return self.head(state[0]).chunk(2, dim=1)

    def decode(self, z):
        hidden, _ = self.decoder_rnn(z.unsqueeze(1).expand(-1, self.length, -1))
        return self.output(hidden)


class Rows(Dataset):
    """Map-style data with a random transform."""

    def __init__(self, rows, noise=0.0):
        self.rows, self.noise = rows, noise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        if self.noise:
            row = torch.where(torch.rand_like(row) < self.noise, 1 - row, row)
        return {"image": row, "label": index % 4}


class RowStream(IterableDataset):
    """Rows without indices."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class Batches:
    """An iterable of batches that can be started again, as a loader is."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Faulty(Dataset):
    """Data with an example that cannot be read. With `dies`, the worker that reads it ends."""

    def __init__(self, bad=None, dies=False):
        self.rows, self.bad, self.dies = groups(128), bad, dies

    def __len__(self):
        return 1000  # more than are tried before training

    def __getitem__(self, index):
        if index == self.bad and not self.dies:
            raise OSError(f"{index}.png is broken\nand has no end")
        if index == self.bad and torch.utils.data.get_worker_info() is not None:
            os._exit(3)
        return self.rows[index % 128]
