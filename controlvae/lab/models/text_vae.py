"""The VAE for sentences: an LSTM or a Transformer reads them, a Transformer or an LSTM writes them."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.data.text.vocabulary import BOS, PAD
from controlvae.lab.models import rnn as recurrent
from controlvae.lab.models.generation import State, Written, first_tokens, write
from controlvae.lab.models.transformer import Block, Drop, Dropout, looking_back, sinusoids

Kind = Literal["lstm", "transformer"]


class LSTMReader(nn.Module):
    """One LSTM layer without bias; the sentence as its last cell beside its last hidden state, (batch, 2 width).

    Sentences are moved to the right, so that padding comes first. There the input is zero, and without a bias a state
    of zero stays exactly zero: the last state is the sentence's, with no lengths to wait for and one static shape.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = _embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, bias=False, batch_first=True)
        self.size = 2 * width

    def forward(self, tokens: Tensor, drop: Dropout) -> Tensor:
        padding = (tokens == PAD).sum(1, keepdim=True)
        place = (
            torch.arange(tokens.shape[1], device=tokens.device) - padding
        )  # below zero before the sentence
        x = self.embedding(tokens.gather(1, place.clamp(min=0))) * (place >= 0).unsqueeze(2)
        _, (hidden, cell) = recurrent.run(self.lstm, x)
        return torch.cat([cell[0], hidden[0]], 1)


class TransformerReader(nn.Module):
    """Blocks that look both ways; the sentence as what stands in the place of BOS, (batch, width)."""

    places: Tensor

    def __init__(
        self, vocabulary: int, width: int, blocks: int, heads: int, inner: int, positions: int
    ) -> None:
        super().__init__()
        self.embedding = _embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner, memory=False) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("places", sinusoids(positions, width), persistent=False)
        self.size = width
        _initialise(self.blocks)

    def forward(self, tokens: Tensor, drop: Dropout) -> Tensor:
        x = drop(_placed(self.embedding, tokens, self.places))
        bias = torch.where(tokens == PAD, -math.inf, 0.0)[:, None, None, :].expand(
            -1, -1, tokens.shape[1], -1
        )
        for block in self.blocks:
            x, _ = block(x, drop, bias=bias)
        return self.norm(x[:, 0])


class TransformerWriter(nn.Module):
    """Blocks that look back, and at a memory of one token that z becomes; the output is tied to the embedding."""

    places: Tensor

    def __init__(
        self,
        vocabulary: int,
        latents: int,
        width: int,
        blocks: int,
        heads: int,
        inner: int,
        positions: int,
    ) -> None:
        super().__init__()
        self.memory = nn.Linear(latents, width)
        self.embedding = _embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner, memory=True) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.heads = heads
        self.register_buffer("places", sinusoids(positions, width), persistent=False)
        _initialise(self.blocks)

    def forward(self, z: Tensor, inputs: Tensor, drop: Dropout) -> Tensor:
        x, memory = drop(_placed(self.embedding, inputs, self.places)), self.memory(z).unsqueeze(1)
        bias = looking_back(inputs.shape[1], inputs.device)
        for block in self.blocks:
            x, _ = block(x, drop, memory, bias=bias)
        return self._logits(x)

    def start(self, z: Tensor) -> State:
        memory = self.memory(z).unsqueeze(1)
        nothing = memory.new_empty(len(z), self.heads, 0, memory.shape[2] // self.heads)
        return memory, *[nothing] * (2 * len(self.blocks))

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        memory, *pairs = state
        inputs = first_tokens(memory) if tokens is None else tokens[:, None]
        x = _placed(self.embedding, inputs, self.places, start=pairs[0].shape[2])
        after = []
        for number, block in enumerate(self.blocks):
            x, pair = block(x, Dropout(), memory, past=(pairs[2 * number], pairs[2 * number + 1]))
            after += pair
        return self._logits(x)[:, 0], (memory, *after)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)


class LSTMWriter(nn.Module):
    """One LSTM layer. z gives its first state and stands beside every input, as in texar and He et al. 2019."""

    def __init__(self, vocabulary: int, latents: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(latents, 2 * width)
        self.embedding = _embedding(vocabulary, width)
        self.lstm = nn.LSTM(width + latents, width, batch_first=True)

    def forward(self, z: Tensor, inputs: Tensor, drop: Dropout) -> Tensor:
        hidden, cell = self.first(z).chunk(2, 1)
        return self._run(z, inputs, hidden, cell, drop)[0]

    def start(self, z: Tensor) -> State:
        return z, *self.first(z).chunk(2, 1)

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        z, hidden, cell = state
        inputs = first_tokens(z) if tokens is None else tokens[:, None]
        logits, state = self._run(z, inputs, hidden, cell, Dropout())
        return logits[:, 0], state

    def _run(
        self, z: Tensor, inputs: Tensor, hidden: Tensor, cell: Tensor, drop: Dropout
    ) -> tuple[Tensor, State]:
        x = drop(self.embedding(inputs))
        x = torch.cat([x, z.unsqueeze(1).expand(-1, x.shape[1], -1)], 2)
        first = hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()
        x, (hidden, cell) = recurrent.run(self.lstm, x, first)
        return F.linear(drop(x), self.embedding.weight), (z, hidden[0], cell[0])


class TextVAE(nn.Module):
    """A sentence to a Gaussian posterior, and latents back to logits of words.

    With its defaults and the 10,003 words of Penn Treebank it is the released text network (8,882,816 parameters):
    LSTM encoder, Transformer decoder, after texar's VAE. Sentences are rows of words, EOS and PAD; both sides see BOS
    before them, and padding touches neither the posterior nor the logits of real places.

    Dropout acts in Transformers and in the LSTM decoder. In training mode it comes from torch's global generator, which
    is no function of the step; `encode` and `decode` take a function to use instead (see `Dropout`).

    Args:
        vocabulary: number of words, with the four that stand for none.
        latents: size of z.
        width: of embeddings and hidden layers.
        encoder, decoder: lstm or transformer.
        blocks, heads, inner: of a Transformer; `inner` is its rectified layer's width.
        dropout: the rate.
        positions: places a Transformer can tell apart: one more than the longest row (BOS).
    """

    def __init__(
        self,
        vocabulary: int,
        latents: int = 64,
        width: int = 256,
        encoder: Kind = "lstm",
        decoder: Kind = "transformer",
        blocks: int = 3,
        heads: int = 8,
        inner: int = 1024,
        dropout: float = 0.2,
        positions: int = 300,
    ) -> None:
        super().__init__()
        for name, kind in (("encoder", encoder), ("decoder", decoder)):
            if kind not in ("lstm", "transformer"):
                raise ValueError(f"{name} must be lstm or transformer, got {kind!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.latents, self.dropout = latents, dropout
        sizes = (blocks, heads, inner, positions)
        self.encoder: LSTMReader | TransformerReader = (
            LSTMReader(vocabulary, width)
            if encoder == "lstm"
            else TransformerReader(vocabulary, width, *sizes)
        )
        self.posterior = nn.Linear(self.encoder.size, 2 * latents)
        self.decoder: LSTMWriter | TransformerWriter = (
            LSTMWriter(vocabulary, latents, width)
            if decoder == "lstm"
            else TransformerWriter(vocabulary, latents, width, *sizes)
        )

    def encode(self, tokens: Tensor, drop: Drop | None = None) -> Posterior:
        """tokens: int64 (batch, T)."""
        summary = self.encoder(F.pad(tokens, (1, 0), value=BOS), self._drop(drop))
        return Posterior.of(self.posterior(summary))

    def decode(self, z: Tensor, tokens: Tensor, drop: Drop | None = None) -> Tensor:
        """Logits of the token at each place, given z and the true tokens before it: (batch, T, vocabulary)."""
        return self.decoder(z, F.pad(tokens[:, :-1], (1, 0), value=BOS), self._drop(drop))

    def forward(self, tokens: Tensor, noise: Tensor) -> tuple[Tensor, Posterior]:
        posterior = self.encode(tokens)
        return self.decode(posterior.sample(noise), tokens), posterior

    @torch.no_grad()
    def generate(self, z: Tensor, longest: int = 100, **how: Any) -> Written:
        """A sentence for each z, from N(0, I) or from a posterior, without dropout; `how` is as in `write`."""
        return write(self.decoder, z, longest, **how)

    def _drop(self, given: Drop | None) -> Dropout:
        return Dropout(self.dropout if self.training else 0.0, given)


def _embedding(vocabulary: int, width: int) -> nn.Embedding:
    """N(0, 1/width): of unit variance once scaled by √width."""
    embedding = nn.Embedding(vocabulary, width)
    nn.init.normal_(embedding.weight, 0.0, width**-0.5)
    return embedding


def _initialise(blocks: nn.ModuleList) -> None:
    """Glorot's uniform weights, as texar's; biases stay at torch's own."""
    for module in blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)


def _placed(embedding: nn.Embedding, tokens: Tensor, places: Tensor, start: int = 0) -> Tensor:
    """Scaled embeddings with their places added: (batch, T, width)."""
    end = start + tokens.shape[1]
    if end > len(places):
        raise ValueError(
            f"positions={len(places)} is too few for a sentence of {end} tokens; build with more"
        )
    return embedding(tokens) * math.sqrt(embedding.embedding_dim) + places[start:end]
