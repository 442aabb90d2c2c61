"""Recurrent VAE on the short sentences of Penn Treebank."""

import torch

from laws.data import LENGTH, PAD, START, WORDS, load_array
from laws.plants.base import (
    Losses,
    Plant,
    cross_entropy,
    gaussian_kl,
    sample_gaussian,
    split_posterior,
)
from laws.stack import Embedding, GRUCell, Linear, Stack


class TextVAE(Plant):
    """GRU encoder and teacher-forced GRU decoder, a model that is prone to posterior collapse.

    Bowman et al., *Generating sentences from a continuous space*, 2016.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
        width: Width of words and hidden states.
    """

    def __init__(self, stack: Stack, latents: int = 6, batch: int = 12, width: int = 20) -> None:
        super().__init__(stack)
        self.data, self.batch, self.width = load_array("sentences"), batch, width
        self.embedding = Embedding(stack, WORDS, width)
        self.encoder = GRUCell(stack, width, width)
        self.posterior = Linear(stack, width, 2 * latents)
        self.first_state = Linear(stack, latents, width)
        self.decoder = GRUCell(stack, width + latents, width)
        self.output = Linear(stack, width, WORDS)

    def losses(self, step: int) -> Losses:
        (words,) = self.stack.batch(self.data, size=self.batch)
        vectors = self.embedding(words)
        state = vectors.new_zeros(self.stack.runs, self.batch, self.width)
        for position in range(LENGTH):
            state = self.encoder(vectors[:, :, position], state)
        mean, log_variance = split_posterior(self.posterior(state))
        z = sample_gaussian(self.stack, mean, log_variance)
        state, states = self.first_state(z).tanh(), []
        start = self.embedding(torch.full_like(words[:, :, :1], START))
        inputs = torch.cat([start, vectors[:, :, :-1]], 2)
        for position in range(LENGTH):
            state = self.decoder(torch.cat([inputs[:, :, position], z], -1), state)
            states.append(state)
        logits = self.output(torch.stack(states, 2).flatten(1, 2)).unflatten(1, words.shape[1:])
        loss = (cross_entropy(logits, words) * (words != PAD)).sum(-1).mean(-1)
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(loss, kl, kl)
