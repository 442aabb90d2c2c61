"""Models that nobody here wrote, or as a user would write them, each with data that it fits."""

import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from custom_models import discs
from torch import nn
from torch.utils.data import Dataset

FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")


def diffusers_autoencoder():
    """Return the autoencoder of latent diffusion in a tiny configuration."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=2,
        norm_num_groups=4,
        sample_size=16,
    )


def colour_discs():
    """Return images of discs in [-1, 1] as diffusers has them, (128, 3, 16, 16)."""
    return 2 * discs(128, channels=3) - 1


def pythae_vae():
    """Return pythae's VAE."""
    from pythae.models import VAE, VAEConfig

    return VAE(VAEConfig(input_dim=(1, 16, 16), latent_dim=4, reconstruction_loss="bce"))


def pythae_iaf():
    """Return pythae's VAE with inverse autoregressive flows, which computes its own loss."""
    from pythae.models import VAE_IAF, VAE_IAF_Config

    config = VAE_IAF_Config(
        input_dim=(1, 16, 16), latent_dim=4, n_made_blocks=2, reconstruction_loss="mse"
    )
    return VAE_IAF(config)


class ResidualBlock(nn.Module):
    """The basic block of torchvision's ResNet."""

    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
        )

    def forward(self, x):
        hidden = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(hidden + self.downsample(x))


class ResNetVAE(nn.Module):
    """A small ResNet as encoder, upsampling as decoder, sigmoid outputs."""

    def __init__(self, size=16, latents=4):
        super().__init__()
        self.features = nn.Sequential(
            ResidualBlock(1, 8, 2), ResidualBlock(8, 8, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.fc_mu, self.fc_logvar = nn.Linear(32, latents), nn.Linear(32, latents)
        self.fc_decode = nn.Linear(latents, 8 * (size // 4) ** 2)
        self.side = size // 4
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2),
            ResidualBlock(8, 8),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 1, 3, padding=1),
            nn.Sigmoid(),
        )

    def encode(self, x):
        features = self.features(x)
        return self.fc_mu(features), self.fc_logvar(features)

    def decode(self, z):
        return self.up(self.fc_decode(z).view(-1, 8, self.side, self.side))


def fashion_or_discs():
    """Return Fashion-MNIST as bytes, (1000, 1, 28, 28), or discs where it is not installed."""
    if not FASHION.is_file():
        return discs(128)
    with gzip.open(FASHION) as file:
        file.read(16)
        return torch.frombuffer(bytearray(file.read(1000 * 784)), dtype=torch.uint8).view(
            1000, 1, 28, 28
        )


class GRUTextVAE(nn.Module):
    """Bowman et al. (2016): a GRU reads a sentence, another writes it with teacher forcing.

    Word dropout, tied input and output embeddings, packed sequences; token 0 is padding.
    """

    def __init__(self, vocabulary=20, width=16, latents=4, keep=0.8):
        super().__init__()
        self.keep = keep
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2 * latents)
        self.start = nn.Linear(latents, width)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def terms(self, batch, noise):
        tokens, lengths = batch["input_ids"], batch["attention_mask"].sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, state = self.reader(packed)
        mean, log_variance = self.head(state[0]).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * log_variance) * noise
        kept = torch.rand(tokens.shape, device=tokens.device) < self.keep
        before = F.pad(tokens[:, :-1], (1, 0)) * kept
        hidden, _ = self.writer(self.embedding(before), torch.tanh(self.start(z))[None])
        logits = self.output(hidden).transpose(1, 2)
        loss = F.cross_entropy(logits, tokens, ignore_index=0, reduction="none").sum(1)
        return loss, 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)


class Sentences(Dataset):
    """Sentences of unequal length."""

    def __init__(self, count=256, seed=0):
        rng = np.random.default_rng(seed)
        self.sentences = [
            (rng.integers(1, 5) + 4 * np.arange(rng.integers(3, 9)) % 15 + 1).tolist()
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]


def pad_sentences(sentences):
    """Return a batch of token ids and their mask, padded to its longest sentence."""
    length = max(map(len, sentences))
    ids = torch.tensor([s + [0] * (length - len(s)) for s in sentences])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def padded_sentences():
    """Return a loader of padded batches."""
    from torch.utils.data import DataLoader

    return DataLoader(Sentences(), batch_size=16, shuffle=True, collate_fn=pad_sentences)


class TabularVAE(nn.Module):
    """Two numeric columns with learnt variances, and two categorical ones."""

    def __init__(self, numeric=2, classes=(3, 5), latents=3, width=16):
        super().__init__()
        self.classes = classes
        self.embeddings = nn.ModuleList(nn.Embedding(count, 4) for count in classes)
        self.encoder_net = nn.Sequential(
            nn.Linear(numeric + 4 * len(classes), width), nn.ReLU(), nn.Linear(width, 2 * latents)
        )
        self.hidden = nn.Sequential(nn.Linear(latents, width), nn.ReLU())
        self.means = nn.Linear(width, numeric)
        self.log_variances = nn.Parameter(torch.zeros(numeric))
        self.scores = nn.ModuleList(nn.Linear(width, count) for count in classes)

    def terms(self, batch, noise):
        numeric, categories = batch["numeric"], batch["categories"]
        embedded = [e(categories[:, i]) for i, e in enumerate(self.embeddings)]
        statistics = self.encoder_net(torch.cat([numeric, *embedded], dim=1))
        mean, log_variance = statistics.chunk(2, dim=1)
        hidden = self.hidden(mean + torch.exp(0.5 * log_variance) * noise)
        loss = F.gaussian_nll_loss(
            self.means(hidden),
            numeric,
            self.log_variances.exp().expand_as(numeric),
            full=True,
            reduction="none",
        ).sum(1)
        for column, scores in enumerate(self.scores):
            loss = loss + F.cross_entropy(scores(hidden), categories[:, column], reduction="none")
        return {
            "reconstruction": loss,
            "kl": 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance),
        }


def customers():
    """Return a table with numeric and categorical columns as a dictionary of arrays."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 256)
    numeric = rng.normal(kind[:, None] - 1, 0.3, (256, 2)).astype(np.float32)
    return {"numeric": numeric, "categories": np.stack([kind, rng.integers(0, 5, 256)], axis=1)}


# Model and data by name, and whether the form allows to sample and traverse.
FOREIGN = {
    "diffusers-autoencoder": (diffusers_autoencoder, colour_discs, True),
    "pythae-vae": (pythae_vae, lambda: discs(128), True),
    "pythae-iaf": (pythae_iaf, lambda: discs(128), False),
    "resnet": (lambda: ResNetVAE(fashion_or_discs().shape[-1]), fashion_or_discs, True),
    "gru-text": (GRUTextVAE, padded_sentences, False),
    "tabular": (TabularVAE, customers, False),
}
