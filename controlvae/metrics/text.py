"""How varied generated sentences are, and how surprised a model is by given ones."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from controlvae.metrics._validation import at_least, host_array

Sentence = str | Sequence[Hashable]  # words between spaces, or a list of words or numbers
_EPSILON = 0.1  # what smoothing method 1 puts in the place of no match


class Distinct(NamedTuple):
    """Distinct n-grams: how many, of how many in all."""

    number: int  # grows with the text: compare at one sample size
    total: int
    ratio: float  # number / total, 0 where there are none


def distinct_n(sentences: Sequence[Sentence], n: int, across: bool = False) -> Distinct:
    """Distinct n-grams of a set of sentences: Dis-n.

    Li et al., *A diversity-promoting objective function for neural conversation models*, 2016, counts within sentences
    and divides by the total. The ControlVAE paper prints the bare count over all sentences put end to end, so that
    n-grams run across the joins: `across=True`.

    Args:
        sentences: strings, split at white space, or lists of tokens.
        n: words in an n-gram.
        across: count over the sentences put end to end.
    """
    at_least(1, n=n)
    texts = _tokens(sentences)
    if across:
        texts = [tuple(chain.from_iterable(texts))]
    grams = Counter(chain.from_iterable(_ngrams(text, n) for text in texts))
    total = sum(grams.values())
    return Distinct(len(grams), total, len(grams) / total if total else 0.0)


def self_bleu(
    sentences: Sequence[Sentence], n: int, sample: int | None = None, seed: int = 0
) -> float:
    """BLEU-n of each sentence against all the others, averaged: 1 where all are alike, 0 where none share a word.

    Zhu et al., *Texygen*, 2018, with uniform weights and smoothing method 1 of Chen & Cherry 2014; equal to NLTK's
    `sentence_bleu`. A count is clipped by the largest one among the *other* sentences, so the two largest counts of
    every n-gram serve all sentences, and 1,000 of them take a fifth of a second where NLTK takes a minute.

    Args:
        sentences: strings, split at white space, or lists of tokens; two or more.
        n: the longest n-grams that count.
        sample: take so many of the sentences at random; None takes all. (The paper takes the first 1,000.)
        seed: of that choice.
    """
    at_least(1, n=n)
    texts = _tokens(sentences)
    if sample is not None:
        if not 2 <= sample <= len(texts):
            raise ValueError(
                f"sample must lie in 2..{len(texts)}, the number of sentences, got {sample}"
            )
        texts = [
            texts[i] for i in np.random.default_rng(seed).choice(len(texts), sample, replace=False)
        ]
    if len(texts) < 2:
        raise ValueError(
            f"sentences must be two or more, each to be held against the others, got {len(texts)}"
        )
    precisions = np.stack([_precisions(texts, order) for order in range(1, n + 1)])
    return float(_score(_brevity([len(text) for text in texts]), precisions).mean())


def bleu(
    sentences: Sequence[Sentence], references: Sequence[Sequence[Sentence]], n: int
) -> np.ndarray:
    """BLEU-n of each sentence against references of its own: (sentences,).

    Papineni et al. 2002, by the sentence, with uniform weights and smoothing method 1 of Chen & Cherry 2014; equal to
    NLTK's `sentence_bleu`.

    Args:
        sentences: strings, split at white space, or lists of tokens.
        references: for each sentence one or more.
        n: the longest n-grams that count.
    """
    at_least(1, n=n)
    texts, others = (
        _tokens(sentences),
        [_tokens(own, "references of each sentence") for own in references],
    )
    if len(texts) != len(others) or not all(others):
        raise ValueError(
            f"every sentence needs references, got {len(texts)} sentences and {len(others)} lists of them"
        )
    penalties = np.array(
        [_penalty(len(text), map(len, own)) for text, own in zip(texts, others, strict=True)]
    )
    precisions = [
        [_matched(text, own, order) for text, own in zip(texts, others, strict=True)]
        for order in range(1, n + 1)
    ]
    return _score(penalties, np.array(precisions).reshape(n, -1))


def perplexity(nats: Any, tokens: Any) -> float:
    """exp(Σ nats / Σ tokens): the number of equally likely words that would surprise as much.

    Which perplexity it is depends on the nats: of the reconstruction alone it is the ControlVAE paper's dialog PPL,
    which falls as z carries more; of reconstruction + KL, or of -`iwae`, it is an upper bound of the model's own.

    Args:
        nats: -log p or a bound on it, of each sentence or in all.
        tokens: how many each sentence has, or in all; the end of a sentence is a token where the nats include it.
    """
    cost, count = host_array(nats).astype(np.float64), host_array(tokens).astype(np.float64)
    if cost.shape != count.shape:
        raise ValueError(
            f"nats and tokens must be of one shape, got {cost.shape} and {count.shape}"
        )
    if not np.isfinite(cost).all() or cost.sum() < 0:
        raise ValueError(
            f"nats must be finite and 0 or more in all, as -log p is, got a sum of {cost.sum()}"
        )
    if (
        not (np.isfinite(count) & (count >= 0) & (count == np.floor(count))).all()
        or count.sum() < 1
    ):
        raise ValueError(
            f"tokens must be whole numbers, 1 or more in all, got a sum of {count.sum()}"
        )
    with np.errstate(over="ignore"):
        return float(np.exp(cost.sum() / count.sum()))


def _tokens(sentences: Sequence[Sentence], what: str = "sentences") -> list[tuple[Hashable, ...]]:
    if isinstance(sentences, str):
        raise ValueError(
            f"{what} must be a list of them, got one string; text.splitlines() makes a list of lines"
        )
    return [
        tuple(sentence.split() if isinstance(sentence, str) else _plain(sentence))
        for sentence in sentences
    ]


def _plain(sentence: Any) -> Sequence[Hashable]:
    """Numbers out of a tensor or an array: as elements of it, equal ones would count as different."""
    return sentence.tolist() if hasattr(sentence, "tolist") else sentence


def _ngrams(text: tuple[Hashable, ...], n: int) -> Iterator[tuple[Hashable, ...]]:
    return zip(*(text[start:] for start in range(n)), strict=False)


def _precisions(texts: Sequence[tuple[Hashable, ...]], order: int) -> np.ndarray:
    """Share of a sentence's n-grams of one order that another sentence has as well, smoothed: (sentences,).

    Zero only where not even a word is shared: that, with NLTK, is a score of 0 and is not smoothed.
    """
    counts = [Counter(_ngrams(text, order)) for text in texts]
    largest: dict[
        tuple[Hashable, ...], tuple[int, int, int]
    ] = {}  # the largest count, whose it is, the next largest
    for number, own in enumerate(counts):
        for gram, count in own.items():
            first, owner, second = largest.get(gram, (0, -1, 0))
            largest[gram] = (
                (count, number, first) if count > first else (first, owner, max(second, count))
            )
    found = np.empty(len(texts))
    for number, own in enumerate(counts):
        others = ((count, largest[gram]) for gram, count in own.items())
        found[number] = sum(
            min(count, top[2] if top[1] == number else top[0]) for count, top in others
        )
    return np.array(
        [_smoothed(count, text, order) for count, text in zip(found, texts, strict=True)]
    )


def _matched(
    text: tuple[Hashable, ...], others: Sequence[tuple[Hashable, ...]], order: int
) -> float:
    """Share of a sentence's n-grams of one order that one of the others has as well, smoothed."""
    most: Counter[tuple[Hashable, ...]] = Counter()
    for other in others:
        most |= Counter(_ngrams(other, order))
    return _smoothed((Counter(_ngrams(text, order)) & most).total(), text, order)


def _smoothed(found: float, text: tuple[Hashable, ...], order: int) -> float:
    return (_EPSILON if found == 0 and order > 1 else found) / max(len(text) - order + 1, 1)


def _score(penalties: np.ndarray, precisions: np.ndarray) -> np.ndarray:
    """BLEU of every sentence from its brevity, (sentences,), and the precisions of each order, (orders, sentences)."""
    with np.errstate(divide="ignore"):  # exp(log 0) is the 0 it should be
        return penalties * np.exp(np.log(precisions).mean(0))


def _brevity(lengths: Sequence[int]) -> np.ndarray:
    """The penalty of each sentence against all the others: (sentences,)."""
    how_many = Counter(lengths)
    others = {
        own: [length for length in how_many if length != own or how_many[own] > 1]
        for own in how_many
    }
    penalties = {own: _penalty(own, others[own]) for own in how_many}
    return np.array([penalties[own] for own in lengths])


def _penalty(own: int, others: Iterable[int]) -> float:
    """exp(1 - r/c) where the reference nearest in length, r, is longer than the sentence, c."""
    nearest = min(others, key=lambda other: (abs(other - own), other))
    if own == 0:
        return 0.0
    return 1.0 if own > nearest else math.exp(1 - nearest / own)
