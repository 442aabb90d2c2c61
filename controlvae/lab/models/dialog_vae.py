"""The conditional VAE for dialogs: z is a code of the response, given what was said before it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.data.text.dialogs import PROFILE, Exchanges
from controlvae.lab.data.text.vocabulary import BOS, PAD
from controlvae.lab.models import rnn as recurrent
from controlvae.lab.models.generation import State, Written, first_tokens, write

_SPREAD = 0.08  # weights start uniform in ± this, as in the released code


class Last(nn.Module):
    """A GRU's state after the last real place of each row, (batch, width).

    The rows go on through their padding and the state is picked where they ended: one static shape, and no lengths to
    wait for.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x: (batch, T, inputs); lengths: (batch,)."""
        states, _ = recurrent.run(self.gru, x)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last).squeeze(1)


class UtteranceReader(nn.Module):
    """An utterance read both ways: the last states of two GRUs side by side, (batch, 2 width)."""

    def __init__(self, embedding: int, width: int) -> None:
        super().__init__()
        self.onward, self.back = Last(embedding, width), Last(embedding, width)

    def forward(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """tokens: (batch, T), words, EOS, then PAD."""
        tokens = F.pad(tokens, (1, 0), value=BOS)
        lengths = (tokens != PAD).sum(1)
        place = lengths[:, None] - 1 - torch.arange(tokens.shape[1], device=tokens.device)
        mirrored = tokens.gather(
            1, place.clamp(min=0)
        )  # the last word first; what follows BOS is never looked at
        return torch.cat(
            [self.onward(embedding(tokens), lengths), self.back(embedding(mirrored), lengths)], 1
        )


class Acts(nn.Module):
    """Dialog acts, known in training and guessed from the code afterwards (kgCVAE)."""

    def __init__(self, acts: int, size: int, code: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(acts, size)
        self.view = nn.Sequential(
            nn.Linear(size, size), nn.Tanh()
        )  # as the recognition network sees it
        self.guess = nn.Sequential(nn.Linear(code, hidden), nn.Tanh(), nn.Linear(hidden, acts))

    def expected(self, code: Tensor) -> Tensor:
        """The embedding to be expected, for the decoder where the act is not known: (batch, size)."""
        return torch.softmax(self.guess(code), 1) @ self.embedding.weight


class DialogVAE(nn.Module):
    """A response to a Gaussian posterior beside a learnt prior, both given the context; and latents back to words.

    With its defaults it is the network of Zhao et al., *Learning discourse-level diversity for neural dialog models
    using conditional variational autoencoders*, 2017: kgCVAE, the paper's model in its released code; with `acts=0`
    their basic CVAE. The context is a GRU over utterances read both ways, beside the topic and who speaks.

    Args:
        vocabulary: number of words, with the four that stand for none.
        topics: number of topics, with the unknown one.
        acts: number of dialog acts, with the unknown one; 0 leaves acts out.
        latents: size of z.
        embedding: size of a word.
        utterance: width of each of the GRUs that read an utterance.
        context: width of the GRU over utterances.
        hidden: width of the decoder and of the layers that guess acts and the bag of words.
        labels: size of a topic and of an act.
        bag_of_words: whether words are guessed from the code in any order, too.
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
        given = context + labels + 2 * PROFILE
        code, act = given + latents, labels if acts else 0
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.topics = nn.Embedding(topics, labels)
        self.utterance = UtteranceReader(embedding, utterance)
        self.context = Last(2 * utterance + 2, context)
        self.acts = Acts(acts, labels, code, hidden) if acts else None
        self.recognition = nn.Linear(given + 2 * utterance + act, 2 * latents)
        between = max(2 * latents, 100)
        self.prior = nn.Sequential(
            nn.Linear(given, between), nn.Tanh(), nn.Linear(between, 2 * latents)
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
                nn.init.uniform_(parameter, -_SPREAD, _SPREAD)

    def read(self, x: Exchanges) -> Tensor:
        """What is given: the context, the topic and who speaks. (batch, size)"""
        return self._given(x, self._utterances(x.context.flatten(0, 1)))

    def before(self, given: Tensor) -> Posterior:
        """p(z|context), from what `read` gave."""
        return Posterior.of(self.prior(given))._replace(given=given)

    def encode(self, x: Exchanges) -> Posterior:
        """q(z|response, context), with its prior and what is given."""
        states = self._utterances(x.context.flatten(0, 1), x.response)
        given = self._given(x, states[: -len(x)])
        seen = [given, states[-len(x) :]]
        if self.acts is not None:
            seen.append(self.acts.view(self.acts.embedding(x.act)))
        return Posterior.of(self.recognition(torch.cat(seen, 1)))._replace(
            prior=self.before(given), given=given
        )

    def decode(self, z: Tensor, x: Exchanges, given: Tensor | None = None) -> Tensor:
        """Logits of the token at each place of the response, given the true ones before it and its true act.

        (batch, T, vocabulary). `given` is what `read` gave, where it is at hand.
        """
        code = self._code(z, x, given)
        act = None if self.acts is None else self.acts.embedding(x.act)
        inputs = F.pad(x.response[:, :-1], (1, 0), value=BOS)
        return self._run(inputs, self._first(code, act), act)[0]

    def act_logits(self, z: Tensor, x: Exchanges, given: Tensor | None = None) -> Tensor | None:
        """Of the response's act, (batch, acts); None without acts."""
        return None if self.acts is None else self.acts.guess(self._code(z, x, given))

    def bag_logits(self, z: Tensor, x: Exchanges, given: Tensor | None = None) -> Tensor:
        """Of the response's words in any order, (batch, vocabulary)."""
        assert self.bag is not None
        return self.bag(self._code(z, x, given))

    @torch.no_grad()
    def respond(self, z: Tensor, given: Tensor, longest: int = 40, **how: Any) -> Written:
        """A response for each z and what is given; `how` is as in `write`."""
        return write(self, torch.cat([given, z], 1), longest, **how)

    def start(self, code: Tensor) -> State:
        """As a `Writer`, from what is given beside z."""
        act = None if self.acts is None else self.acts.expected(code)
        return self._first(code, act), *([] if act is None else [act])

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        hidden, *act = state
        inputs = first_tokens(hidden) if tokens is None else tokens[:, None]
        logits, hidden = self._run(inputs, hidden, act[0] if act else None)
        return logits[:, 0], (hidden, *act)

    def _utterances(self, *rows: Tensor) -> Tensor:
        """All of these read at once, as wide as the widest: a GRU's time is in its steps, not in its rows."""
        width = max(each.shape[1] for each in rows)
        padded = [F.pad(each, (0, width - each.shape[1]), value=PAD) for each in rows]
        return self.utterance(torch.cat(padded), self.embedding)

    def _given(self, x: Exchanges, utterances: Tensor) -> Tensor:
        """From the utterances of the context, (batch x window, width)."""
        floors = torch.stack([1 - x.floors, x.floors], 2).to(utterances.dtype)
        spoken = (x.context[:, :, 0] != PAD).sum(1)
        context = self.context(torch.cat([utterances.view(*x.floors.shape, -1), floors], 2), spoken)
        return torch.cat([self._topic(x.topic), x.profiles.flatten(1), context], 1)

    def _topic(self, topic: Tensor) -> Tensor:
        """Its embedding; the unknown one, the first, stands in the middle of the known: (batch, labels)."""
        table = self.topics.weight
        if len(table) == 1:
            return self.topics(topic)
        return torch.where(topic[:, None] == 0, table[1:].mean(0), self.topics(topic))

    def _code(self, z: Tensor, x: Exchanges, given: Tensor | None) -> Tensor:
        return torch.cat([self.read(x) if given is None else given, z], 1)

    def _first(self, code: Tensor, act: Tensor | None) -> Tensor:
        return self.first(code if act is None else torch.cat([code, act], 1))

    def _run(self, inputs: Tensor, hidden: Tensor, act: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.embedding(inputs)
        if act is not None:
            x = torch.cat([x, act[:, None].expand(-1, x.shape[1], -1)], 2)
        x, hidden = recurrent.run(self.decoder, x, hidden[None].contiguous())
        return self.output(x), hidden[0]
