"""VAE of sentences, with an LSTM or a Transformer as encoder and as decoder."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.data.text.vocabulary import BOS, PAD
from controlvae.lab.models.generation import (
    GeneratedTokens,
    State,
    first_tokens,
    generate_tokens,
)
from controlvae.lab.models.rnn import run_rnn
from controlvae.lab.models.transformer import (
    Block,
    Dropout,
    DropoutFunction,
    causal_bias,
    sinusoidal_positions,
)

NetworkKind = Literal["lstm", "transformer"]


class LSTMEncoder(nn.Module):
    """One LSTM layer without biases. Returns its last cell and hidden state, (batch, 2 width).

    Sentences are shifted to the right, so that padding comes first. The input there is zero, and
    without biases a zero state stays exactly zero. The last state is therefore the sentence's,
    with one static shape and no lengths to wait for.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = _make_embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, bias=False, batch_first=True)
        self.size = 2 * width

    def forward(self, tokens: Tensor, dropout: Dropout) -> Tensor:
        """Encode tokens, (batch, T), that begin with BOS."""
        padding = (tokens == PAD).sum(1, keepdim=True)
        # Negative before the sentence.
        place = torch.arange(tokens.shape[1], device=tokens.device) - padding
        x = self.embedding(tokens.gather(1, place.clamp(min=0))) * (place >= 0).unsqueeze(2)
        _, (hidden, cell) = run_rnn(self.lstm, x)
        return torch.cat([cell[0], hidden[0]], 1)


class TransformerEncoder(nn.Module):
    """Bidirectional Transformer blocks. Returns the output at BOS, (batch, width).

    Args:
        vocabulary: Number of tokens.
        width: Size of a token.
        blocks: Number of blocks.
        heads: Attention heads of a block.
        inner: Width of a block's ReLU layer.
        positions: Number of positions it can encode.
    """

    places: Tensor

    def __init__(
        self, vocabulary: int, width: int, blocks: int, heads: int, inner: int, positions: int
    ) -> None:
        super().__init__()
        self.embedding = _make_embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner, memory=False) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("places", sinusoidal_positions(positions, width), persistent=False)
        self.size = width
        _initialise_blocks(self.blocks)

    def forward(self, tokens: Tensor, dropout: Dropout) -> Tensor:
        """Encode tokens, (batch, T), that begin with BOS."""
        x = dropout(_embed(self.embedding, tokens, self.places))
        padding = torch.where(tokens == PAD, -math.inf, 0.0)
        bias = padding[:, None, None, :].expand(-1, -1, tokens.shape[1], -1)
        for block in self.blocks:
            x, _ = block(x, dropout, bias=bias)
        return self.norm(x[:, 0])


class TransformerDecoder(nn.Module):
    """Causal Transformer blocks that also attend to z as a memory of one token.

    The output weights are tied to the embedding.

    Args:
        vocabulary: Number of tokens.
        latents: Size of z.
        width: Size of a token.
        blocks: Number of blocks.
        heads: Attention heads of a block.
        inner: Width of a block's ReLU layer.
        positions: Number of positions it can encode.
    """

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
        self.embedding = _make_embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner, memory=True) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.heads = heads
        self.register_buffer("places", sinusoidal_positions(positions, width), persistent=False)
        _initialise_blocks(self.blocks)

    def forward(self, z: Tensor, inputs: Tensor, dropout: Dropout) -> Tensor:
        """Return logits of the token after each input, (batch, T, vocabulary).

        Args:
            z: Latents, (batch, latents).
            inputs: Tokens that begin with BOS, (batch, T).
            dropout: Dropout of all layers.
        """
        x = dropout(_embed(self.embedding, inputs, self.places))
        memory = self.memory(z).unsqueeze(1)
        bias = causal_bias(inputs.shape[1], inputs.device)
        for block in self.blocks:
            x, _ = block(x, dropout, memory, bias=bias)
        return self._logits(x)

    def start(self, z: Tensor) -> State:
        """Return the state before the first token. See `StepwiseDecoder`."""
        memory = self.memory(z).unsqueeze(1)
        empty = memory.new_empty(len(z), self.heads, 0, memory.shape[2] // self.heads)
        return memory, *[empty] * (2 * len(self.blocks))

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return logits of the next token and the new state. See `StepwiseDecoder`."""
        memory, *past = state
        inputs = first_tokens(memory) if tokens is None else tokens[:, None]
        x = _embed(self.embedding, inputs, self.places, start=past[0].shape[2])
        new_state = []
        for number, block in enumerate(self.blocks):
            key_value = (past[2 * number], past[2 * number + 1])
            x, key_value = block(x, Dropout(), memory, past=key_value)
            new_state += key_value
        return self._logits(x)[:, 0], (memory, *new_state)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)


class LSTMDecoder(nn.Module):
    """One LSTM layer. z sets its initial state and is appended to every input.

    As in texar and He et al. 2019. The output weights are tied to the embedding.
    """

    def __init__(self, vocabulary: int, latents: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(latents, 2 * width)
        self.embedding = _make_embedding(vocabulary, width)
        self.lstm = nn.LSTM(width + latents, width, batch_first=True)

    def forward(self, z: Tensor, inputs: Tensor, dropout: Dropout) -> Tensor:
        """Return logits of the token after each input, (batch, T, vocabulary).

        Args:
            z: Latents, (batch, latents).
            inputs: Tokens that begin with BOS, (batch, T).
            dropout: Dropout of inputs and outputs.
        """
        hidden, cell = self.first(z).chunk(2, 1)
        return self._run(z, inputs, hidden, cell, dropout)[0]

    def start(self, z: Tensor) -> State:
        """Return the state before the first token. See `StepwiseDecoder`."""
        return z, *self.first(z).chunk(2, 1)

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return logits of the next token and the new state. See `StepwiseDecoder`."""
        z, hidden, cell = state
        inputs = first_tokens(z) if tokens is None else tokens[:, None]
        logits, state = self._run(z, inputs, hidden, cell, Dropout())
        return logits[:, 0], state

    def _run(
        self, z: Tensor, inputs: Tensor, hidden: Tensor, cell: Tensor, dropout: Dropout
    ) -> tuple[Tensor, State]:
        x = dropout(self.embedding(inputs))
        x = torch.cat([x, z.unsqueeze(1).expand(-1, x.shape[1], -1)], 2)
        initial = hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()
        x, (hidden, cell) = run_rnn(self.lstm, x, initial)
        return F.linear(dropout(x), self.embedding.weight), (z, hidden[0], cell[0])


class TextVAE(nn.Module):
    """VAE of sentences: tokens to a Gaussian posterior, and latents to logits of tokens.

    With its defaults and the 10,003 words of Penn Treebank it is the released text network
    (8,882,816 parameters): LSTM encoder, Transformer decoder, after texar's VAE. Sentences are rows
    of words, EOS and PAD. Encoder and decoder see BOS before them, and padding affects neither the
    posterior nor the logits at real tokens.

    Dropout applies to Transformers and to the LSTM decoder. In training mode it uses torch's global
    generator, which is not a function of the step. `encode` and `decode` accept a function to use
    instead (see `Dropout`).

    Args:
        vocabulary: Number of tokens, including the four special ones.
        latents: Size of z.
        width: Width of embeddings and hidden layers.
        encoder: Network of the encoder.
        decoder: Network of the decoder.
        blocks: Number of Transformer blocks.
        heads: Attention heads of a block.
        inner: Width of a block's ReLU layer.
        dropout: Dropout rate.
        positions: Positions that a Transformer can encode: one more than the longest row (BOS).
    """

    def __init__(
        self,
        vocabulary: int,
        latents: int = 64,
        width: int = 256,
        encoder: NetworkKind = "lstm",
        decoder: NetworkKind = "transformer",
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
        self.encoder: LSTMEncoder | TransformerEncoder = (
            LSTMEncoder(vocabulary, width)
            if encoder == "lstm"
            else TransformerEncoder(vocabulary, width, *sizes)
        )
        self.posterior = nn.Linear(self.encoder.size, 2 * latents)
        self.decoder: LSTMDecoder | TransformerDecoder = (
            LSTMDecoder(vocabulary, latents, width)
            if decoder == "lstm"
            else TransformerDecoder(vocabulary, latents, width, *sizes)
        )

    def encode(self, tokens: Tensor, dropout: DropoutFunction | None = None) -> Posterior:
        """Return q(z|x) of sentences, int64 (batch, T)."""
        summary = self.encoder(F.pad(tokens, (1, 0), value=BOS), self._make_dropout(dropout))
        return Posterior.from_encoder_output(self.posterior(summary))

    def decode(self, z: Tensor, tokens: Tensor, dropout: DropoutFunction | None = None) -> Tensor:
        """Return logits of the token at each place, given z and the true tokens before it.

        Args:
            z: Latents, (batch, latents).
            tokens: Sentences, int64 (batch, T).
            dropout: Function to use instead of torch's dropout.

        Returns:
            Logits, (batch, T, vocabulary).
        """
        inputs = F.pad(tokens[:, :-1], (1, 0), value=BOS)
        return self.decoder(z, inputs, self._make_dropout(dropout))

    def forward(self, tokens: Tensor, noise: Tensor) -> tuple[Tensor, Posterior]:
        """Return logits for a sample of the posterior, and the posterior."""
        posterior = self.encode(tokens)
        return self.decode(posterior.sample(noise), tokens), posterior

    @torch.no_grad()
    def generate(self, z: Tensor, max_tokens: int = 100, **options: Any) -> GeneratedTokens:
        """Generate one sentence per row of z, without dropout.

        Args:
            z: Latents from the prior or a posterior, (batch, latents).
            max_tokens: Maximum number of tokens, including EOS.
            **options: Further options of `generate_tokens`.
        """
        return generate_tokens(self.decoder, z, max_tokens, **options)

    def _make_dropout(self, function: DropoutFunction | None) -> Dropout:
        return Dropout(self.dropout if self.training else 0.0, function)


def _make_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """Return an embedding drawn from N(0, 1/width), which √width scales to unit variance."""
    embedding = nn.Embedding(vocabulary, width)
    nn.init.normal_(embedding.weight, 0.0, width**-0.5)
    return embedding


def _initialise_blocks(blocks: nn.ModuleList) -> None:
    """Draw weights from Glorot's uniform distribution, as texar does; biases stay torch's."""
    for module in blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)


def _embed(embedding: nn.Embedding, tokens: Tensor, places: Tensor, start: int = 0) -> Tensor:
    """Return scaled embeddings plus position codes, (batch, T, width)."""
    end = start + tokens.shape[1]
    if end > len(places):
        raise ValueError(
            f"positions must be at least {end} for a sentence of {end} tokens, got {len(places)}; "
            "build the model with more positions"
        )
    return embedding(tokens) * math.sqrt(embedding.embedding_dim) + places[start:end]
