"""The grammar: its derivations, counted independently, and its sentences."""

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest

from controlvae.lab.data.text import grammar
from controlvae.lab.data.text.vocabulary import UNK


def derivations(words):
    """Count the derivations of a sentence by its factors."""

    @cache
    def ways(symbol, start):
        """Count the derivations of a symbol from `start` to each end."""
        if isinstance(symbol, str):
            return Counter([start + 1] if start < len(words) and words[start] == symbol else [])
        found = Counter()
        for _, right in grammar.grammar_rules()[symbol]:
            ends = Counter([start])
            for part in right:
                ends = sum(
                    (
                        Counter({e: n * m for e, m in ways(part, place).items()})
                        for place, n in ends.items()
                    ),
                    Counter(),
                )
            found += ends
        return found

    combinations = itertools.product(*(range(len(values)) for values in grammar.FACTORS.values()))
    names = [
        (factors, tuple(v[f] for v, f in zip(grammar.FACTORS.values(), factors, strict=True)))
        for factors in combinations
    ]
    return {
        factors: count
        for factors, name in names
        if (count := ways(("sentence", *name), 0)[len(words)])
    }


def test_sentence_has_one_derivation_and_parses():
    drawn = grammar.draw_sentences(50)
    assert all(derivations(sentence.words) == {sentence.factors: 1} for sentence in drawn)
    assert all(
        grammar.parse_factors(sentence.words) == sentence.factors
        for sentence in grammar.draw_sentences(150, seed=1)
    )
    words = list(drawn[0].words)
    assert grammar.parse_factors([*words[:-1], "the", "."]) is None
    assert grammar.parse_factors([]) is None


def test_grammar_is_a_reproducible_distribution():
    assert all(
        sum(p for p, _ in options) == pytest.approx(1)
        for options in grammar.grammar_rules().values()
    )
    sentences = grammar.grammar_dataset(2_000, seed=1)
    assert 200 < len(sentences.vocabulary) < 600
    assert 15 < sentences.lengths.float().mean() < 25
    assert int((sentences.tokens == UNK).sum()) == 0
    assert np.allclose(np.bincount(sentences.factors[:, 0]) / 2_000, 1 / 8, atol=0.03)
    again, fewer = grammar.draw_sentences(2_000, seed=1), grammar.draw_sentences(7, seed=1)
    assert again[:7] == fewer
    assert sentences.to_text(sentences.tokens[6]) == " ".join(fewer[6].words)
    assert (
        grammar.draw_sentences(7, seed=2)
        != fewer
        != grammar.draw_sentences(7, seed=1, split="test")
    )
    # The nats of a sentence are the sum over its factors and its rules.
    assert np.mean([sentence.nats for sentence in again]) == pytest.approx(34, abs=1)
