"""Text metrics, compared with nltk and hand-computed cases."""

import math
import time

import numpy as np
import pytest
import torch

import controlvae as cv
from controlvae.lab.data.text import grammar


@pytest.mark.parametrize(
    ("sentences", "two", "three"),
    [
        (["a b c d", "a b x y"], math.sqrt(1 / 6), (1 / 2 * 1 / 3 * 0.05) ** (1 / 3)),
        (["yeah", "yeah", "right"], 2 / 3 * math.sqrt(0.1), 2 / 3 * 0.01 ** (1 / 3)),
        (["a b c d e f", "a b c"], 0.4075465183, 0.3681412955),
        (["a a a a", "a a b"], 0.4109689178, 0.2166705956),
        (["a b", "a b c d"], 0.3880638658, 0.1867472886),
        (["a b", "c d"], 0.0, 0.0),
        (["a b c", "a b c"], 1.0, 1.0),
        (["", "a", "a"], 2 / 3 * math.sqrt(0.1), 2 / 3 * 0.01 ** (1 / 3)),
    ],
)
def test_self_bleu_of_hand_computed_cases(sentences, two, three):
    assert cv.metrics.self_bleu(sentences, 2) == pytest.approx(two, abs=1e-9)
    assert cv.metrics.self_bleu(sentences, 3) == pytest.approx(three, abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_self_bleu_equals_nltk(n):
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    odd = [["yeah"], ["yeah"], ["no", "no", "no", "no"], ["no", "no"], ["alone"], ["."] * 9]
    sentences = [list(sentence.words) for sentence in grammar.draw_sentences(60)] + odd
    smooth, weights = bleu.SmoothingFunction().method1, (1 / n,) * n
    scores = [
        bleu.sentence_bleu(sentences[:i] + sentences[i + 1 :], sentences[i], weights, smooth)
        for i in range(len(sentences))
    ]
    assert cv.metrics.self_bleu(sentences, n) == pytest.approx(np.mean(scores), abs=1e-6)


def test_self_bleu_is_fast_and_its_sample_is_seeded():
    sentences = [sentence.words for sentence in grammar.draw_sentences(1_200)]
    start = time.perf_counter()
    first = cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=1)
    assert time.perf_counter() - start < 10
    assert first == cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=1)
    assert first != cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=2)


def test_distinct_n_within_and_across_sentences():
    sentences = ["a b a b", "b a", "c"]
    assert cv.metrics.distinct_n(sentences, 1) == (3, 7, 3 / 7)
    assert cv.metrics.distinct_n(sentences, 2) == (2, 4, 0.5)  # ab, ba
    assert cv.metrics.distinct_n(sentences, 2, across=True) == (4, 6, 4 / 6)  # ab, ba, bb, ac
    assert cv.metrics.distinct_n(["c"], 2) == (0, 0, 0.0)


def test_perplexity_of_uniform_choices_is_their_number():
    assert cv.metrics.perplexity(torch.full((3,), 5 * math.log(4)), [5, 5, 5]) == pytest.approx(4)
    by_token = cv.metrics.perplexity([math.log(2), 3 * math.log(2)], np.array([1, 3]))
    assert by_token == pytest.approx(2)
    assert cv.metrics.perplexity(1e6, 2) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cv.metrics.self_bleu(["a b"], 2), "sentences"),
        (lambda: cv.metrics.self_bleu("a b c", 2), "one string"),
        (lambda: cv.metrics.self_bleu(["a", "b"], 2, sample=3), r"2\.\.2"),
        (lambda: cv.metrics.distinct_n(["a"], 0), "n must be"),
        (lambda: cv.metrics.perplexity([1.0, 2.0], 3), "shape"),
        (lambda: cv.metrics.perplexity(float("nan"), 3), "finite"),
        (lambda: cv.metrics.perplexity(-1.0, 3), None),
        (lambda: cv.metrics.perplexity(1.0, 0), None),
    ],
)
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tensors_equal_their_numbers():
    rows = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]])
    assert cv.metrics.self_bleu(rows, 2) == cv.metrics.self_bleu(rows.tolist(), 2) > 0.8
    assert cv.metrics.distinct_n(rows, 1).number == 5
