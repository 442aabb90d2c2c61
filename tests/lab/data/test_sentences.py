"""Sentences from text files and Penn Treebank, and their batches."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from controlvae.errors import UserError
from controlvae.lab.data.bucketing import BucketOrder, iter_buckets
from controlvae.lab.data.text import grammar, penn_treebank, text_file
from controlvae.lab.data.text.vocabulary import EOS, PAD, SPECIAL_TOKENS, UNK


@pytest.fixture
def file(tmp_path):
    lines = [f"the {'very ' * (i % 7)}cat number{i} sat" for i in range(40)]
    path = tmp_path / "cats.txt"
    path.write_text("\ufeff" + "\n\n".join(lines) + "\r\n", encoding="utf-8")
    return path, lines


def test_text_file_is_split_without_loss(file):
    path, lines = file
    train, test = (
        text_file.text_file(str(path), split, held_out=0.25) for split in ("train", "test")
    )
    assert (len(train), len(test)) == (30, 10)
    assert train.vocabulary == test.vocabulary
    assert train.vocabulary[:5] == (*SPECIAL_TOKENS, "very")
    known = {train.to_text(train.tokens[i]) for i in range(30)}
    assert known <= set(lines)
    decoded = [test.to_text(row) for row in test.batch(torch.arange(10))]
    assert {line.replace(line.split()[-2], "<UNK>") for line in set(lines) - known} == set(decoded)
    assert "10 words" in test.source  # outside the vocabulary
    batch = train.batch(torch.tensor([[3, 1], [4, 1]]))
    assert batch.dtype == torch.int64
    assert batch.shape == (2, 2, *train.shape)
    assert ((batch[0, 0] != PAD).sum(), batch[0, 0, train.lengths[3] - 1]) == (
        train.lengths[3],
        EOS,
    )


def test_subwords_decode_to_the_text(file):
    pytest.importorskip("tokenizers")
    path, lines = file
    train, test = (
        text_file.text_file(str(path), split, held_out=0.25, subwords=60)
        for split in ("train", "test")
    )
    assert len(train.vocabulary) <= 60 + len(SPECIAL_TOKENS)
    assert "outside the vocabulary" not in test.source
    assert {part.to_text(row) for part in (train, test) for row in part.tokens} == set(lines)
    assert test.to_text(test.encode(lines[0])) == lines[0]
    assert test.unknown_words(f"{lines[0]} 漢字") == ["漢字"]
    with pytest.raises(UserError, match="fewer than the letters"):
        text_file.text_file(str(path), held_out=0.25, subwords=3)
    # Every process learns the same subwords, so that a run can be resumed.
    code = (
        "from controlvae.lab.data.text.text_file import text_file\n"
        f"print(text_file({str(path)!r}, held_out=0.25, subwords=60).fingerprint())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == train.fingerprint()


def test_skipped_and_unknown_words_are_reported(file):
    path, _ = file
    short = text_file.text_file(str(path), max_words=7, held_out=0)
    assert short.shape == (8,)
    assert len(short) == 24
    assert "16 of 40 skipped" in short.source
    with pytest.raises(ValueError, match="width must be 8"):
        short.batch(torch.arange(24), width=7)
    path.write_text(path.read_text() + "a " * 40_000)
    assert "17 of 41 skipped" in text_file.text_file(str(path), max_words=7, held_out=0).source
    few = text_file.text_file(str(path), held_out=0, vocabulary_size=3, max_words=10)
    assert len(few.vocabulary) == 7
    # "cat", "sat" and "the" are equally frequent.
    assert few.to_text(few.tokens[1]) == "<UNK> very cat <UNK> sat"
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
def test_invalid_text_raises(tmp_path, content, settings, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        text_file.text_file("bad.txt", root=tmp_path, **settings)


def test_penn_treebank_is_complete(tmp_path):
    place = penn_treebank.find_penn_treebank()
    if place is None:
        pytest.skip("no Penn Treebank in the data folders; set CONTROLVAE_DATA")
    splits = {split: penn_treebank.penn_treebank(split) for split in penn_treebank.COUNTS}
    assert [len(part) for part in splits.values()] == [42_068, 3_370, 3_761]
    assert all(len(part.vocabulary) == 10_003 for part in splits.values())
    words = [int(part.lengths.sum()) for part in splits.values()]
    assert words == [929_589, 73_760, 82_430]  # the published word counts
    assert splits["train"].shape == (83,)
    assert all(int((part.tokens == UNK).sum()) == 0 for part in splits.values())
    if place.suffix == ".zip":
        with zipfile.ZipFile(place) as archive:
            archive.extractall(tmp_path)
        assert torch.equal(
            penn_treebank.penn_treebank("test", root=tmp_path).tokens, splits["test"].tokens
        )
    short = tmp_path / "short"
    short.mkdir()
    for split in penn_treebank.COUNTS:
        (short / f"ptb.{split}.txt").write_text("one sentence\n")
    with pytest.raises(UserError, match="1 sentences instead of 42,068"):
        penn_treebank.penn_treebank("train", root=short)


def test_missing_penn_treebank_names_its_files(tmp_path, monkeypatch):
    monkeypatch.delenv("CONTROLVAE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"it needs ptb\.train\.txt"):
        penn_treebank.penn_treebank()


@pytest.mark.parametrize("batch", [10, 32])
def test_buckets_hold_every_sentence_once_per_epoch(batch):
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
    assert dropped.max() <= 2  # different ones in every epoch
    padded = sum(order.width(step) for step in range(order.steps_per_epoch)) * batch
    assert padded < 1.35 * lengths[order.permutation(0)[: order.steps_per_epoch * batch]].sum()
    fresh = BucketOrder(lengths, batch, seed=5)
    assert torch.equal(fresh.indices(77), order.indices(77))  # a function of (seed, step) alone
    assert not torch.equal(BucketOrder(lengths, batch, seed=6).indices(77), order.indices(77))
    buckets = list(iter_buckets(lengths, batch))
    assert torch.equal(
        torch.cat([bucket.indices for bucket in buckets]).sort().values, torch.arange(500)
    )
    assert all(lengths[bucket.indices].max() <= bucket.width for bucket in buckets)
