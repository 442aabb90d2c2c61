"""Text without an engine: metrics, sentences as numbers, and a grammar, against something independent."""

import itertools
import math
import subprocess
import sys
import time
import zipfile
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.data.bucketing import BucketOrder, iter_buckets
from controlvae.lab.data.text import grammar, penn_treebank, text_file
from controlvae.lab.data.text.vocabulary import EOS, PAD, SPECIAL_TOKENS, UNK

# Metrics


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
def test_self_bleu_of_cases_worked_out_by_hand(sentences, two, three):
    assert cv.metrics.self_bleu(sentences, 2) == pytest.approx(two, abs=1e-9)
    assert cv.metrics.self_bleu(sentences, 3) == pytest.approx(three, abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_self_bleu_is_nltks(n):
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    odd = [["yeah"], ["yeah"], ["no", "no", "no", "no"], ["no", "no"], ["alone"], ["."] * 9]
    sentences = [list(drawn.words) for drawn in grammar.draw_sentences(60)] + odd
    smooth, weights = bleu.SmoothingFunction().method1, (1 / n,) * n
    scores = [
        bleu.sentence_bleu(sentences[:i] + sentences[i + 1 :], sentences[i], weights, smooth)
        for i in range(len(sentences))
    ]
    assert cv.metrics.self_bleu(sentences, n) == pytest.approx(np.mean(scores), abs=1e-6)


def test_self_bleu_of_a_thousand_sentences_takes_seconds_and_its_sample_is_seeded():
    sentences = [drawn.words for drawn in grammar.draw_sentences(1_200)]
    start = time.perf_counter()
    first = cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=1)
    assert time.perf_counter() - start < 10
    assert first == cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=1)
    assert first != cv.metrics.self_bleu(sentences, 3, sample=1_000, seed=2)


def test_distinct_n_within_sentences_and_across_their_ends():
    sentences = ["a b a b", "b a", "c"]
    assert cv.metrics.distinct_n(sentences, 1) == (3, 7, 3 / 7)
    assert cv.metrics.distinct_n(sentences, 2) == (2, 4, 0.5)  # ab, ba
    assert cv.metrics.distinct_n(sentences, 2, across=True) == (4, 6, 4 / 6)  # ab, ba, bb, ac
    assert cv.metrics.distinct_n(["c"], 2) == (0, 0, 0.0)


def test_perplexity_of_even_odds_is_their_number():
    assert cv.metrics.perplexity(torch.full((3,), 5 * math.log(4)), [5, 5, 5]) == pytest.approx(4)
    assert cv.metrics.perplexity([math.log(2), 3 * math.log(2)], np.array([1, 3])) == pytest.approx(
        2
    )  # by token
    assert cv.metrics.perplexity(1e6, 2) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cv.metrics.self_bleu(["a b"], 2), "two or more"),
        (lambda: cv.metrics.self_bleu("a b c", 2), "one string"),
        (lambda: cv.metrics.self_bleu(["a", "b"], 2, sample=3), r"2\.\.2"),
        (lambda: cv.metrics.distinct_n(["a"], 0), "n must be 1"),
        (lambda: cv.metrics.perplexity([1.0, 2.0], 3), "one shape"),
        (lambda: cv.metrics.perplexity(float("nan"), 3), "finite"),
        (lambda: cv.metrics.perplexity(-1.0, 3), "0 or more"),
        (lambda: cv.metrics.perplexity(1.0, 0), "1 or more"),
    ],
)
def test_metrics_refuse_what_makes_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Data


@pytest.fixture
def file(tmp_path):
    lines = [f"the {'very ' * (i % 7)}cat number{i} sat" for i in range(40)]
    path = tmp_path / "cats.txt"
    path.write_text("\ufeff" + "\n\n".join(lines) + "\r\n", encoding="utf-8")
    return path, lines


def test_a_text_file_comes_back_word_for_word_each_line_in_one_part(file):
    path, lines = file
    train, test = (
        text_file.text_file(str(path), part, held_out=0.25) for part in ("train", "test")
    )
    assert (len(train), len(test)) == (30, 10)
    assert train.vocabulary == test.vocabulary
    assert train.vocabulary[:5] == (*SPECIAL_TOKENS, "very")
    known = {train.to_text(train.tokens[i]) for i in range(30)}
    assert known <= set(lines)
    heard = [test.to_text(row) for row in test.batch(torch.arange(10))]
    assert {line.replace(line.split()[-2], "<UNK>") for line in set(lines) - known} == set(heard)
    assert "10 words" in test.source  # outside the vocabulary, and it says so
    batch = train.batch(torch.tensor([[3, 1], [4, 1]]))
    assert batch.dtype == torch.int64
    assert batch.shape == (2, 2, *train.shape)
    assert ((batch[0, 0] != PAD).sum(), batch[0, 0, train.lengths[3] - 1]) == (
        train.lengths[3],
        EOS,
    )


def test_pieces_of_words_leave_none_unknown_and_come_back_whole(file):
    pytest.importorskip("tokenizers")
    path, lines = file
    train, test = (
        text_file.text_file(str(path), part, held_out=0.25, subwords=60)
        for part in ("train", "test")
    )
    assert len(train.vocabulary) <= 60 + len(SPECIAL_TOKENS)
    assert "outside the vocabulary" not in test.source
    assert {part.to_text(row) for part in (train, test) for row in part.tokens} == set(lines)
    assert test.to_text(test.encode(lines[0])) == lines[0]
    assert test.unknown_words(f"{lines[0]} 漢字") == ["漢字"]
    with pytest.raises(UserError, match="fewer than the letters"):
        text_file.text_file(str(path), held_out=0.25, subwords=3)
    again = "from controlvae.lab.data.text.text_file import text_file; print(text_file({!r}, held_out=0.25, subwords=60).fingerprint())"
    other = subprocess.run(
        [sys.executable, "-c", again.format(str(path))], capture_output=True, text=True, check=True
    )
    assert (
        other.stdout.strip() == train.fingerprint()
    )  # learnt alike in every process, so a run can be resumed


def test_nothing_is_cut_in_silence(file):
    path, _ = file
    longest = text_file.text_file(str(path), max_words=7, held_out=0)
    assert longest.shape == (8,)
    assert len(longest) == 24
    assert "16 of 40 skipped, longer than 7 words" in longest.source
    with pytest.raises(ValueError, match="width must be 8"):
        longest.batch(torch.arange(24), width=7)
    path.write_text(path.read_text() + "a " * 40_000)
    assert "17 of 41 skipped" in text_file.text_file(str(path), max_words=7, held_out=0).source
    few = text_file.text_file(str(path), held_out=0, vocabulary_size=3, max_words=10)
    assert len(few.vocabulary) == 7
    assert (
        few.to_text(few.tokens[1]) == "<UNK> very cat <UNK> sat"
    )  # "cat", "sat" and "the" are as frequent
    assert "80 words (29.1%) outside the vocabulary of 7" in few.source


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"a b\n", {"held_out": 0.1}, "1 sentences"),
        (b"a b\n", {"held_out": 0.9}, "1 sentences"),
        (b"\n \n", {}, "no sentences"),
        (b"a\xff\n", {}, "not UTF-8"),
        (b"a <EOS>\nb\n", {"held_out": 0}, "<EOS>"),
        (b"a\n", {"split": "dev"}, "train or test"),
        (
            b"a b\n\n" + b"a " * 40_000,
            {},
            r"line 3 of .*bad.txt has 40,000 words, .*data.max_words=100",
        ),
        (b"a b\n" + b"a" * 40_000, {"subwords": 50}, r"line 2 of .*bad.txt has 40,000 letters"),
    ],
)
def test_bad_text_is_refused_with_a_reason(tmp_path, content, settings, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        text_file.text_file("bad.txt", root=tmp_path, **settings)


def test_penn_treebank_is_all_there(tmp_path):
    place = penn_treebank.find_penn_treebank()
    if place is None:
        pytest.skip("no Penn Treebank in the data folders; set CONTROLVAE_DATA")
    parts = {split: penn_treebank.penn_treebank(split) for split in penn_treebank.COUNTS}
    assert [len(part) for part in parts.values()] == [42_068, 3_370, 3_761]
    assert all(len(part.vocabulary) == 10_003 for part in parts.values())
    assert [int(part.lengths.sum()) for part in parts.values()] == [
        929_589,
        73_760,
        82_430,
    ]  # the known word counts
    assert parts["train"].shape == (83,)
    assert all(int((part.tokens == UNK).sum()) == 0 for part in parts.values())
    if place.suffix == ".zip":
        with zipfile.ZipFile(place) as archive:
            archive.extractall(tmp_path)
        assert torch.equal(
            penn_treebank.penn_treebank("test", root=tmp_path).tokens, parts["test"].tokens
        )
    short = tmp_path / "short"
    short.mkdir()
    for split in penn_treebank.COUNTS:
        (short / f"ptb.{split}.txt").write_text("one sentence\n")
    with pytest.raises(UserError, match="1 sentences instead of 42,068"):
        penn_treebank.penn_treebank("train", root=short)


def test_a_missing_penn_treebank_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"it needs ptb\.train\.txt"):
        penn_treebank.penn_treebank()


@pytest.mark.parametrize("batch", [10, 32])
def test_buckets_hold_every_sentence_once_an_epoch(batch):
    lengths = grammar.grammar_dataset(500).lengths
    order = BucketOrder(lengths, batch, seed=5)
    dropped = np.zeros(len(lengths))
    for epoch in range(3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        taken = torch.cat([order.indices(step) for step in steps])
        assert len(taken.unique()) == len(taken) == order.steps_per_epoch * batch
        dropped[np.setdiff1d(np.arange(500), taken.numpy())] += 1
        for step in steps:
            assert lengths[order.indices(step)].max() <= order.width(step) <= lengths.max()
    assert dropped.sum() == 3 * (500 % batch)
    assert dropped.max() <= 2  # not the same ones every time
    padded = sum(order.width(step) for step in range(order.steps_per_epoch)) * batch
    assert padded < 1.35 * lengths[order.permutation(0)[: order.steps_per_epoch * batch]].sum()
    fresh = BucketOrder(lengths, batch, seed=5)
    assert torch.equal(fresh.indices(77), order.indices(77))  # a function of (seed, step) alone
    assert not torch.equal(BucketOrder(lengths, batch, seed=6).indices(77), order.indices(77))
    whole = list(iter_buckets(lengths, batch))
    assert torch.equal(
        torch.cat([bucket.indices for bucket in whole]).sort().values, torch.arange(500)
    )
    assert all(lengths[bucket.indices].max() <= bucket.width for bucket in whole)


def derivations(words):
    """How many ways the rules derive a sentence, by its meaning: counts, where `parse` only asks whether."""

    @cache
    def ways(symbol, start):
        """Of deriving what lies between here and each end."""
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

    meanings = itertools.product(*(range(len(values)) for values in grammar.FACTORS.values()))
    names = [
        (meaning, tuple(v[f] for v, f in zip(grammar.FACTORS.values(), meaning, strict=True)))
        for meaning in meanings
    ]
    return {
        meaning: count
        for meaning, name in names
        if (count := ways(("sentence", *name), 0)[len(words)])
    }


def test_a_sentence_of_the_grammar_has_one_derivation_and_parses_back():
    drawn = grammar.draw_sentences(50)
    assert all(derivations(sentence.words) == {sentence.factors: 1} for sentence in drawn)
    assert all(
        grammar.parse_factors(sentence.words) == sentence.factors
        for sentence in grammar.draw_sentences(150, seed=1)
    )
    words = list(drawn[0].words)
    assert grammar.parse_factors([*words[:-1], "the", "."]) is None
    assert grammar.parse_factors([]) is None


def test_the_grammar_is_a_distribution_over_long_sentences_drawn_the_same_each_time():
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
    # Sentences are worth what their rules cost: the topic once, and much more for the rest.
    assert np.mean([drawn.nats for drawn in again]) == pytest.approx(34, abs=1)


def test_tensors_count_as_the_numbers_in_them():
    rows = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]])
    assert cv.metrics.self_bleu(rows, 2) == cv.metrics.self_bleu(rows.tolist(), 2) > 0.8
    assert cv.metrics.distinct_n(rows, 1).number == 5
