"""Small text models and random sentences for tests."""

import itertools

import torch

from controlvae.lab.data.text.vocabulary import EOS, PAD
from controlvae.lab.models.text_vae import TextVAE

VOCABULARY = 30
NETWORKS = list(itertools.product(("lstm", "transformer"), repeat=2))


def make_text_vae(
    encoder="lstm", decoder="transformer", vocabulary=VOCABULARY, dropout=0.0, sharpness=1.0
):
    """Return a small model in evaluation mode. `sharpness` makes its word choices less even."""
    torch.manual_seed(3)
    model = TextVAE(
        vocabulary,
        latents=4,
        width=16,
        encoder=encoder,
        decoder=decoder,
        blocks=2,
        heads=4,
        inner=32,
        dropout=dropout,
    ).eval()
    with torch.no_grad():
        model.decoder.embedding.weight *= sharpness
    return model


def make_sentences(*lengths, seed=0):
    """Return random sentences of these numbers of tokens, EOS included."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    for row, length in zip(tokens, lengths, strict=True):
        row[length - 1], row[length:] = EOS, PAD
    return tokens
