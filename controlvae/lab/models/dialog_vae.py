"""Conditional VAE of dialogs: z describes the response, given the dialog before it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.data.text.dialogs import PROFILE_SIZE, DialogBatch
from controlvae.lab.data.text.vocabulary import BOS, PAD
from controlvae.lab.models.generation import (
    GeneratedTokens,
    State,
    first_tokens,
    generate_tokens,
)
from controlvae.lab.models.rnn import run_rnn

_INITIAL_RANGE = 0.08  # weights start uniform in ± this, as in the released code


class LastState(nn.Module):
    """GRU that returns its state after the last real place of each row, (batch, width).

    It also runs over the padding, and the state is selected where each row ended. Shapes are
    therefore static and there are no lengths to wait for.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read rows x, (batch, T, inputs), of these lengths, (batch,)."""
        states, _ = run_rnn(self.gru, x)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last).squeeze(1)


class UtteranceEncoder(nn.Module):
    """Bidirectional GRU over an utterance. Returns both last states, (batch, 2 width)."""

    def __init__(self, embedding: int, width: int) -> None:
        super().__init__()
        self.onward, self.back = LastState(embedding, width), LastState(embedding, width)

    def forward(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """Encode tokens, (batch, T): words, EOS, then PAD."""
        tokens = F.pad(tokens, (1, 0), value=BOS)
        lengths = (tokens != PAD).sum(1)
        place = lengths[:, None] - 1 - torch.arange(tokens.shape[1], device=tokens.device)
        # The last word comes first. Places after BOS repeat it and are not read.
        mirrored = tokens.gather(1, place.clamp(min=0))
        return torch.cat(
            [self.onward(embedding(tokens), lengths), self.back(embedding(mirrored), lengths)], 1
        )


class DialogActs(nn.Module):
    """Dialog acts, known in training and predicted from z and the context otherwise (kgCVAE).

    Args:
        acts: Number of dialog acts.
        size: Size of an act's embedding.
        code: Size of the context and z together.
        hidden: Width of the predicting layer.
    """

    def __init__(self, acts: int, size: int, code: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(acts, size)
        # Input of the recognition network.
        self.view = nn.Sequential(nn.Linear(size, size), nn.Tanh())
        self.guess = nn.Sequential(nn.Linear(code, hidden), nn.Tanh(), nn.Linear(hidden, acts))

    def expected_embedding(self, code: Tensor) -> Tensor:
        """Return the mean embedding under the predicted acts, (batch, size)."""
        return torch.softmax(self.guess(code), 1) @ self.embedding.weight


class DialogVAE(nn.Module):
    """Conditional VAE of responses, with a learnt prior given the context.

    With its defaults it is the network of Zhao et al., *Learning discourse-level diversity for
    neural dialog models using conditional variational autoencoders*, 2017: kgCVAE, the paper's
    model in its released code. With `acts=0` it is their basic CVAE. The context is a GRU over
    utterances, which are read in both directions, together with the topic and the speakers.

    Args:
        vocabulary: Number of tokens, including the four special ones.
        topics: Number of topics, including the unknown one.
        acts: Number of dialog acts, including the unknown one. 0 builds a model without acts.
        latents: Size of z.
        embedding: Size of a token.
        utterance: Width of each GRU that reads an utterance.
        context: Width of the GRU over utterances.
        hidden: Width of the decoder and of the layers that predict acts and the bag of words.
        labels: Size of a topic and of an act.
        bag_of_words: Whether the model also predicts the response's words in any order.
    """

    padding_id = PAD

    def __init__(
        self,
        vocabulary: int,
        topics: int,
        acts: int,
        latents: int = 200,
        embedding: int = 200,
        utterance: int = 300,
        context: int = 600,
        hidden: int = 400,
        labels: int = 30,
        bag_of_words: bool = True,
    ) -> None:
        super().__init__()
        self.latents = latents
        context_size = context + labels + 2 * PROFILE_SIZE
        code, act = context_size + latents, labels if acts else 0
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.topics = nn.Embedding(topics, labels)
        self.utterance = UtteranceEncoder(embedding, utterance)
        self.context = LastState(2 * utterance + 2, context)
        self.acts = DialogActs(acts, labels, code, hidden) if acts else None
        self.recognition = nn.Linear(context_size + 2 * utterance + act, 2 * latents)
        prior_width = max(2 * latents, 100)
        self.prior = nn.Sequential(
            nn.Linear(context_size, prior_width), nn.Tanh(), nn.Linear(prior_width, 2 * latents)
        )
        self.bag = (
            nn.Sequential(nn.Linear(code, hidden), nn.Tanh(), nn.Linear(hidden, vocabulary))
            if bag_of_words
            else None
        )
        self.first = nn.Linear(code + act, hidden)
        self.decoder = nn.GRU(embedding + act, hidden, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -_INITIAL_RANGE, _INITIAL_RANGE)

    def encode_context(self, x: DialogBatch) -> Tensor:
        """Return the encoded context: utterances, topic and speakers, (batch, size)."""
        return self._join_context(x, self._encode_utterances(x.context.flatten(0, 1)))

    def compute_prior(self, context: Tensor) -> Posterior:
        """Return p(z|context) of an encoded context."""
        return Posterior.from_encoder_output(self.prior(context))._replace(context=context)

    def encode(self, x: DialogBatch) -> Posterior:
        """Return q(z|response, context), together with its prior and the encoded context."""
        states = self._encode_utterances(x.context.flatten(0, 1), x.response)
        context = self._join_context(x, states[: -len(x)])
        inputs = [context, states[-len(x) :]]
        if self.acts is not None:
            inputs.append(self.acts.view(self.acts.embedding(x.act)))
        posterior = Posterior.from_encoder_output(self.recognition(torch.cat(inputs, 1)))
        return posterior._replace(prior=self.compute_prior(context), context=context)

    def decode(self, z: Tensor, x: DialogBatch, context: Tensor | None = None) -> Tensor:
        """Return logits of the response's tokens, given its true act and the true tokens before.

        Args:
            z: Latents, (batch, latents).
            x: Exchanges.
            context: Result of `encode_context`, or None to compute it.

        Returns:
            Logits, (batch, T, vocabulary).
        """
        code = self._join_code(z, x, context)
        act = None if self.acts is None else self.acts.embedding(x.act)
        inputs = F.pad(x.response[:, :-1], (1, 0), value=BOS)
        return self._run_decoder(inputs, self._initial_hidden(code, act), act)[0]

    def act_logits(self, z: Tensor, x: DialogBatch, context: Tensor | None = None) -> Tensor | None:
        """Return logits of the response's act, (batch, acts), or None without acts.

        Args:
            z: Latents, (batch, latents).
            x: Exchanges.
            context: Result of `encode_context`, or None to compute it.
        """
        return None if self.acts is None else self.acts.guess(self._join_code(z, x, context))

    def bag_logits(self, z: Tensor, x: DialogBatch, context: Tensor | None = None) -> Tensor:
        """Return logits of the response's words in any order, (batch, vocabulary).

        Args:
            z: Latents, (batch, latents).
            x: Exchanges.
            context: Result of `encode_context`, or None to compute it.
        """
        assert self.bag is not None
        return self.bag(self._join_code(z, x, context))

    @torch.no_grad()
    def respond(
        self, z: Tensor, context: Tensor, max_tokens: int = 40, **options: Any
    ) -> GeneratedTokens:
        """Generate one response per row of z.

        Args:
            z: Latents, (batch, latents).
            context: Result of `encode_context`.
            max_tokens: Maximum number of tokens, including EOS.
            **options: Further options of `generate_tokens`.
        """
        return generate_tokens(self, torch.cat([context, z], 1), max_tokens, **options)

    def start(self, code: Tensor) -> State:
        """Return the state before the first token, from context and z. See `StepwiseDecoder`."""
        act = None if self.acts is None else self.acts.expected_embedding(code)
        return self._initial_hidden(code, act), *([] if act is None else [act])

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return logits of the next token and the new state. See `StepwiseDecoder`."""
        hidden, *act = state
        inputs = first_tokens(hidden) if tokens is None else tokens[:, None]
        logits, hidden = self._run_decoder(inputs, hidden, act[0] if act else None)
        return logits[:, 0], (hidden, *act)

    def _encode_utterances(self, *rows: Tensor) -> Tensor:
        """Encode all rows in one call, because a GRU's time is in its steps, not in its rows."""
        width = max(each.shape[1] for each in rows)
        padded = [F.pad(each, (0, width - each.shape[1]), value=PAD) for each in rows]
        return self.utterance(torch.cat(padded), self.embedding)

    def _join_context(self, x: DialogBatch, utterances: Tensor) -> Tensor:
        """Return the encoded context from its utterances, (batch x window, width)."""
        floors = torch.stack([1 - x.floors, x.floors], 2).to(utterances.dtype)
        count = (x.context[:, :, 0] != PAD).sum(1)
        context = self.context(torch.cat([utterances.view(*x.floors.shape, -1), floors], 2), count)
        return torch.cat([self._embed_topic(x.topic), x.profiles.flatten(1), context], 1)

    def _embed_topic(self, topic: Tensor) -> Tensor:
        """Return topic embeddings. The unknown topic, the first, is the mean of the known ones."""
        table = self.topics.weight
        if len(table) == 1:
            return self.topics(topic)
        return torch.where(topic[:, None] == 0, table[1:].mean(0), self.topics(topic))

    def _join_code(self, z: Tensor, x: DialogBatch, context: Tensor | None) -> Tensor:
        return torch.cat([self.encode_context(x) if context is None else context, z], 1)

    def _initial_hidden(self, code: Tensor, act: Tensor | None) -> Tensor:
        return self.first(code if act is None else torch.cat([code, act], 1))

    def _run_decoder(
        self, inputs: Tensor, hidden: Tensor, act: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x = self.embedding(inputs)
        if act is not None:
            x = torch.cat([x, act[:, None].expand(-1, x.shape[1], -1)], 2)
        x, hidden = run_rnn(self.decoder, x, hidden[None].contiguous())
        return self.output(x), hidden[0]
