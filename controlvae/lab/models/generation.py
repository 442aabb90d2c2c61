"""Text generation from latents: greedy, sampled, or by beam search, with any stepwise decoder."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from controlvae.lab.data.text.vocabulary import BOS, EOS, PAD

State = tuple[Tensor, ...]  # state of a decoder; the first dimension of each tensor is the batch


class StepwiseDecoder(Protocol):
    """Decoder that produces one token at a time."""

    def start(self, z: Tensor) -> State:
        """Return the state before the first token."""
        ...

    def step(self, tokens: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return logits of the next token, (batch, vocabulary), and the new state.

        Args:
            tokens: Latest token of each row, (batch,), or None at the beginning.
            state: State after the tokens before it.
        """
        ...


class GeneratedTokens(NamedTuple):
    """Generated sentences. A sentence that reached the length limit has no EOS."""

    tokens: Tensor  # (batch, T) int64: words, EOS, then PAD
    # (batch,), in nats, under the model itself, without temperature and truncation.
    log_probability: Tensor


def first_tokens(like: Tensor) -> Tensor:
    """Return one BOS token per row of `like`, (batch, 1)."""
    return torch.full((len(like), 1), BOS, device=like.device)


def generate_tokens(
    decoder: StepwiseDecoder,
    z: Tensor,
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    beam: int | None = None,
    seed: int = 0,
    banned: Sequence[int] = (PAD, BOS),
) -> GeneratedTokens:
    """Generate one sentence per row of z. The result depends only on z and the seed.

    Args:
        decoder: Decoder of the model.
        z: Input of the decoder, (batch, size).
        max_tokens: Maximum number of tokens, including EOS.
        temperature: Softmax temperature. 0 always takes the most likely token.
        top_k: Sample from the k most likely tokens.
        top_p: Sample from the smallest set of most likely tokens with this total probability.
        beam: Width of a beam search, which replaces sampling.
        seed: Seed of the samples.
        banned: Tokens that are never generated.

    Raises:
        ValueError: If a setting is out of range, or `beam` is combined with a sampling setting.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be zero or positive, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    if beam is None:
        return sample_tokens(decoder, z, max_tokens, banned, temperature, top_k, top_p, seed)
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    if top_k is not None or top_p is not None or temperature != 1:
        raise ValueError(
            f"beam={beam} cannot be combined with temperature, top_k or top_p, "
            f"got {temperature}, {top_k} and {top_p}; leave them out"
        )
    return beam_search(decoder, z, max_tokens, banned, beam)


def sample_tokens(
    decoder: StepwiseDecoder,
    z: Tensor,
    max_tokens: int,
    banned: Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> GeneratedTokens:
    """Sample token by token from softmax(logits / temperature), truncated by top-k and top-p.

    Args:
        decoder: Decoder of the model.
        z: Input of the decoder, (batch, size).
        max_tokens: Maximum number of tokens, including EOS.
        banned: Tokens that are never generated.
        temperature: Softmax temperature. 0 always takes the most likely token.
        top_k: Sample from the k most likely tokens.
        top_p: Sample from the smallest set of most likely tokens with this total probability.
        seed: Seed of the samples.
    """
    generator = torch.Generator(z.device).manual_seed(seed)
    state, tokens = decoder.start(z), None
    total = torch.zeros(len(z), device=z.device)
    done = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    columns = []
    for _ in range(max_tokens):
        logits, state = decoder.step(tokens, state)
        log_p = _log_softmax(logits, banned)
        if temperature == 0:
            chosen = log_p.argmax(1)
        else:
            weights = _truncate(_apply_temperature(log_p, temperature), top_k, top_p)
            chosen = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        total = total + torch.where(done, 0.0, log_p.gather(1, chosen[:, None]).squeeze(1))
        tokens = torch.where(done, PAD, chosen)
        columns.append(tokens)
        done = done | (chosen == EOS)
        if done.all():
            break
    return GeneratedTokens(torch.stack(columns, 1), total)


def beam_search(
    decoder: StepwiseDecoder, z: Tensor, max_tokens: int, banned: Sequence[int], beam: int
) -> GeneratedTokens:
    """Return the most likely sentence found by a beam search or by greedy decoding.

    A beam can lose the greedy sentence, so the more likely of the two is returned. The score is
    the log-probability without a length bonus.

    Args:
        decoder: Decoder of the model.
        z: Input of the decoder, (batch, size).
        max_tokens: Maximum number of tokens, including EOS.
        banned: Tokens that are never generated.
        beam: Number of candidates per row.
    """
    greedy = sample_tokens(decoder, z, max_tokens, banned, temperature=0)
    best, best_score = _pad_to(greedy.tokens, max_tokens), greedy.log_probability
    count, device = len(z), z.device
    rows = torch.arange(count, device=device)
    state, tokens = decoder.start(z.repeat_interleave(beam, 0)), None
    candidates = torch.full((count, beam, max_tokens), PAD, device=device)
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0  # all candidates are equal at first, so only one is extended
    for place in range(max_tokens):
        logits, state = decoder.step(tokens, state)
        log_p = _log_softmax(logits, banned).view(count, beam, -1)
        scores, flat = (scores[:, :, None] + log_p).flatten(1).topk(beam, 1)
        parent, chosen = flat // log_p.shape[2], flat % log_p.shape[2]
        candidates = candidates.gather(1, parent[:, :, None].expand_as(candidates))
        candidates[:, :, place] = chosen
        is_complete = (chosen == EOS) | (place == max_tokens - 1)
        score, index = torch.where(is_complete, scores, -math.inf).max(1)
        better = score > best_score
        best = torch.where(better[:, None], candidates[rows, index], best)
        best_score = torch.where(better, score, best_score)
        scores = torch.where(chosen == EOS, -math.inf, scores)
        if (scores.max(1).values <= best_score).all():  # more tokens only lower a score
            break
        parent_rows = (rows[:, None] * beam + parent).flatten()
        state = tuple(tensor.index_select(0, parent_rows) for tensor in state)
        tokens = chosen.flatten()
    length = int((best != PAD).sum(1).max())
    return GeneratedTokens(best[:, :length], best_score)


def _log_softmax(logits: Tensor, banned: Sequence[int]) -> Tensor:
    """Return the model's log-probabilities, with -inf for banned tokens."""
    log_p = torch.log_softmax(logits.float(), 1)
    log_p[:, list(banned)] = -math.inf
    return log_p


def _apply_temperature(log_p: Tensor, temperature: float) -> Tensor:
    return torch.softmax((log_p - log_p.amax(1, keepdim=True)) / temperature, 1)


def _truncate(weights: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the weights outside of top-k and top-p (Holtzman et al. 2020) to zero."""
    if top_k is not None and top_k < weights.shape[1]:
        threshold = weights.topk(top_k, 1).values[:, -1:]
        weights = torch.where(weights >= threshold, weights, 0.0)
    if top_p is not None:
        ranked, order = (weights / weights.sum(1, keepdim=True)).sort(1, descending=True)
        before = ranked.cumsum(1) - ranked
        retained = torch.where(before < top_p, ranked, 0.0)
        weights = torch.zeros_like(weights).scatter(1, order, retained)
    return weights


def _pad_to(tokens: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]), value=PAD)
