"""From latents to sentences: greedily, by chance, or by beam search, with any decoder that writes a word at a time."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from controlvae.lab.data.text.vocabulary import BOS, EOS, PAD

State = tuple[Tensor, ...]  # what a decoder remembers; every tensor begins with the batch


class Writer(Protocol):
    """A decoder, a word at a time."""

    def start(self, z: Tensor) -> State:
        """Before the first word."""
        ...

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Logits of the next word, (batch, vocabulary), after these, (batch,); None stands for the beginning."""
        ...


class Written(NamedTuple):
    """Sentences that a model wrote. One that reached the limit has no EOS."""

    tokens: Tensor  # (batch, T) int64: words, EOS, then PAD
    log_probability: Tensor  # (batch,), in nats, under the model itself, whatever temperature or cut it was drawn with


def first_tokens(like: Tensor) -> Tensor:
    """BOS for every sentence: (batch, 1)."""
    return torch.full((len(like), 1), BOS, device=like.device)


def write(
    writer: Writer,
    z: Tensor,
    longest: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    beam: int | None = None,
    seed: int = 0,
    banned: Sequence[int] = (PAD, BOS),
) -> Written:
    """A sentence for each z; a function of z and the seed.

    Args:
        writer: a decoder.
        z: (batch, size), what it writes from.
        longest: tokens at most, EOS included.
        temperature: 0 takes the likeliest word every time.
        top_k: draw from the k likeliest words.
        top_p: draw from the fewest likeliest words that have this probability together.
        beam: search with so many candidates instead of drawing.
        seed: of the draws.
        banned: tokens never written.
    """
    if longest < 1:
        raise ValueError(f"longest must be 1 or more, got {longest}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be 0 or more, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be 1 or more, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    if beam is None:
        return sample(writer, z, longest, banned, temperature, top_k, top_p, seed)
    if beam < 1 or top_k is not None or top_p is not None or temperature != 1:
        raise ValueError(
            f"beam must be 1 or more and stands alone: it searches and draws nothing, got {beam}"
        )
    return beam_search(writer, z, longest, banned, beam)


def sample(
    writer: Writer,
    z: Tensor,
    longest: int,
    banned: Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Written:
    """Word by word from softmax(logits / temperature), cut to the likeliest; a temperature of 0 takes the likeliest."""
    generator = torch.Generator(z.device).manual_seed(seed)
    state, tokens = writer.start(z), None
    total = torch.zeros(len(z), device=z.device)
    done = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    rows = []
    for _ in range(longest):
        logits, state = writer.step(tokens, state)
        log_p = _log_softmax(logits, banned)
        if temperature == 0:
            chosen = log_p.argmax(1)
        else:
            weights = _cut(_tempered(log_p, temperature), top_k, top_p)
            chosen = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        total = total + torch.where(done, 0.0, log_p.gather(1, chosen[:, None]).squeeze(1))
        tokens = torch.where(done, PAD, chosen)
        rows.append(tokens)
        done = done | (chosen == EOS)
        if done.all():
            break
    return Written(torch.stack(rows, 1), total)


def beam_search(
    writer: Writer, z: Tensor, longest: int, banned: Sequence[int], beam: int
) -> Written:
    """The likeliest sentence that a beam finds; where it lost greedy's way and greedy's is likelier, that one.

    No length is favoured: the score is the log-probability itself.
    """
    best = sample(writer, z, longest, banned, temperature=0)
    found, found_score = _widened(best.tokens, longest), best.log_probability
    count, device = len(z), z.device
    first = torch.arange(count, device=device)[:, None] * beam
    state, tokens = writer.start(z.repeat_interleave(beam, 0)), None
    rows = torch.full((count, beam, longest), PAD, device=device)
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0  # all beams are alike at first: one goes on
    for place in range(longest):
        logits, state = writer.step(tokens, state)
        log_p = _log_softmax(logits, banned).view(count, beam, -1)
        scores, flat = (scores[:, :, None] + log_p).flatten(1).topk(beam, 1)
        parent, chosen = flat // log_p.shape[2], flat % log_p.shape[2]
        rows = rows.gather(1, parent[:, :, None].expand_as(rows))
        rows[:, :, place] = chosen
        ended = torch.where((chosen == EOS) | (place == longest - 1), scores, -math.inf)
        score, which = ended.max(1)
        better = score > found_score
        found = torch.where(better[:, None], rows[torch.arange(count, device=device), which], found)
        found_score = torch.where(better, score, found_score)
        scores = torch.where(chosen == EOS, -math.inf, scores)
        if (scores.max(1).values <= found_score).all():  # more words only cost more
            break
        state = tuple(part.index_select(0, (first + parent).flatten()) for part in state)
        tokens = chosen.flatten()
    used = int((found != PAD).sum(1).max())
    return Written(found[:, :used], found_score)


def _log_softmax(logits: Tensor, banned: Sequence[int]) -> Tensor:
    """The model's own log-probabilities, with those of banned words struck out."""
    log_p = torch.log_softmax(logits.float(), 1)
    log_p[:, list(banned)] = -math.inf
    return log_p


def _tempered(log_p: Tensor, temperature: float) -> Tensor:
    return torch.softmax((log_p - log_p.amax(1, keepdim=True)) / temperature, 1)


def _cut(weights: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """The k likeliest words; the fewest likeliest that together have probability p (Holtzman et al. 2020)."""
    if top_k is not None and top_k < weights.shape[1]:
        least = weights.topk(top_k, 1).values[:, -1:]
        weights = torch.where(weights >= least, weights, 0.0)
    if top_p is not None:
        ranked, order = (weights / weights.sum(1, keepdim=True)).sort(1, descending=True)
        before = ranked.cumsum(1) - ranked
        weights = torch.zeros_like(weights).scatter(
            1, order, torch.where(before < top_p, ranked, 0.0)
        )
    return weights


def _widened(tokens: Tensor, longest: int) -> Tensor:
    return torch.nn.functional.pad(tokens, (0, longest - tokens.shape[1]), value=PAD)
