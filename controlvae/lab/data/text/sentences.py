"""Sentences as rows of numbers: Penn Treebank, any text file with one sentence a line, any data set of `datasets`.

Penn Treebank is Mikolov's version (lower case, 9,999 word types, numbers as N, rare words as <unk>), as in the paper.
Its text belongs to the LDC: it is read where it is found and never shipped.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import PennTreebank, TextFile
from controlvae.lab.data import huggingface as hub
from controlvae.lab.data.bucketing import BucketOrder, in_buckets
from controlvae.lab.data.dataset import digest
from controlvae.lab.data.paths import brings_test, data_roots, resolve_path
from controlvae.lab.data.source import Source, named_by_setting
from controlvae.lab.data.splits import Part, split_indices
from controlvae.lab.data.text.subwords import Cut, learn_pieces, whole
from controlvae.lab.data.text.vocabulary import SPECIAL, to_numbers, to_words, vocabulary

Split = Literal["train", "valid", "test"]
COUNTS = {"train": 42_068, "valid": 3_370, "test": 3_761}
ARCHIVE = "ptb_mikolov.zip"
_LONG, _LONG_LETTERS = (
    500,
    5_000,
)  # of a line where no limit is set: a batch of longer ones fills a memory
_FOLDERS = ("", "ptb", "simple-examples/data", "ptb/simple-examples/data")
NEEDS = f"ptb.train.txt, ptb.valid.txt and ptb.test.txt (Mikolov's, 6 MB), or {ARCHIVE}; here or in ptb/"


@dataclass(frozen=True)
class SentenceDataset:
    """Sentences as `Examples`: a row holds a sentence's words, EOS, then PAD. BOS is the model's to put in front."""

    tokens: Tensor  # (count, longest) int32
    lengths: Tensor  # (count,) int64, words and EOS; stays on the host, where batches are planned
    vocabulary: tuple[str, ...]
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)
    cut: Cut | None = None  # into the pieces that tokens are, where they are no words
    lower: bool = (
        False  # its words are all in lower case, whatever the case of a sentence of one's own
    )
    eval_batch_size: ClassVar[int] = (
        50  # with logits for every word of the vocabulary at every place
    )
    metadata_file: ClassVar[str] = "words.json"

    @property
    def shape(self) -> tuple[int]:
        """The tokens of a row, (longest,)."""
        return (self.tokens.shape[1],)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, indices: Tensor, width: int | None = None) -> Tensor:
        """The rows at these indices: int64 (*indices.shape, longest), one shape for all, which a captured graph needs.

        With a `width`, such as `BucketOrder` gives, only so many columns. On the host it is checked that nothing but
        padding is cut off; on a device that would mean waiting for it.
        """
        if width is not None and indices.device.type == "cpu" and len(indices):
            longest = int(self.lengths[indices].max())
            if longest > width:
                raise ValueError(
                    f"width must be {longest} or more to hold these sentences, got {width}"
                )
        rows = self.tokens.index_select(0, indices.reshape(-1).to(self.tokens.device)).to(
            indices.device
        )
        return rows[:, :width].long().view(*indices.shape, -1)

    def batches(self, indices: Tensor) -> Iterator[Tensor]:
        """Those of like length together."""
        for few, width in in_buckets(self.lengths[indices.cpu()], self.eval_batch_size):
            yield self.batch(indices[few.to(indices.device)], width)

    def order(
        self, batch: int, seed: int, stream: int = 0, among: Tensor | None = None
    ) -> BucketOrder:
        return BucketOrder(self.lengths, batch, seed, stream=stream, among=among)

    def to(self, device: torch.device) -> "SentenceDataset":
        return replace(self, tokens=self.tokens.to(device))

    def fingerprint(self) -> str:
        return digest(f"{len(self)} {' '.join(self.vocabulary)}", self.tokens)

    def metadata(self) -> str:
        """What a model needs of them to write, as JSON."""
        kept = {"vocabulary": self.vocabulary, "lower": self.lower, "longest": self.shape[0]}
        return json.dumps(
            kept | ({"pieces": self.cut.learnt} if self.cut else {}), ensure_ascii=False
        )

    @classmethod
    def from_metadata(cls, kept: str, reason: str) -> "SentenceDataset":
        """No sentences, and the words of those that `kept` was of; `reason` says why they are not here."""
        found = json.loads(kept)
        none = (
            torch.zeros(0, found["longest"], dtype=torch.int32),
            torch.zeros(0, dtype=torch.int64),
        )
        cut = Cut(found["pieces"]) if "pieces" in found else None
        return cls(*none, tuple(found["vocabulary"]), reason, cut=cut, lower=found["lower"])

    def row(self, sentence: str) -> Tensor:
        """A sentence of one's own, its words between white space, as its tokens and EOS: int64 (T,)."""
        words = self._split(sentence)
        parts = self.cut(words) if self.cut else words
        return torch.from_numpy(to_numbers([parts], self.vocabulary).tokens[0]).long()

    def unknown(self, sentence: str) -> list[str]:
        """The words of a sentence of one's own that it does not know."""
        known, words = set(self.vocabulary) - set(SPECIAL), dict.fromkeys(self._split(sentence))
        return [
            word for word in words if not known.issuperset(self.cut([word]) if self.cut else [word])
        ]

    def _split(self, sentence: str) -> list[str]:
        return (sentence.lower() if self.lower else sentence).split()

    def words(self, row: Tensor | Iterable[int]) -> str:
        """A row of tokens back as text."""
        text = to_words(row.tolist() if isinstance(row, Tensor) else row, self.vocabulary)
        return whole(text) if self.cut else text


class Chosen(NamedTuple):
    """Sentences that are short enough, and a word on those that are not."""

    sentences: list[list[str]]
    note: str


def penn_treebank(split: Split = "train", root: Path | None = None) -> SentenceDataset:
    """Penn Treebank, with the vocabulary of its training text: 10,003 with the four that stand for no word.

    Args:
        split: train, valid or test.
        root: a folder to look in before the usual ones.
    """
    if split not in COUNTS:
        raise UserError(f"split must be {', '.join(COUNTS)}, got {split!r}")
    place = find(root)
    if place is None:
        raise UserError(
            f"no Penn Treebank in {', '.join(map(str, data_roots(root)))}; it needs {NEEDS}"
        )
    texts = {name: _ptb_lines(place, name) for name in dict.fromkeys(("train", split))}
    words = vocabulary(texts["train"])
    return _sentences(
        Chosen(texts[split], ""), words, f"Penn Treebank from {place}", f"the {split} part"
    )


def text_file(
    path: str,
    part: Part = "train",
    held_out: float = 0.1,
    root: Path | None = None,
    words: int | None = None,
    lower: bool = False,
    longest: int | None = None,
    pieces: int | None = None,
) -> SentenceDataset:
    """Any UTF-8 text with one sentence a line, its words between white space; or a column of a data set of `datasets`.

    The vocabulary is that of the training part. Which lines are held out is a fixed random choice, so that seeds of a
    run differ in training alone.

    Args:
        path: the file, as given or inside a data folder; or the data set, with `:column` where it has several of text.
        part: train or test, of what `held_out` divides.
        held_out: the share kept for testing, where the text brings no test part of its own.
        root: a folder to look in before the usual ones.
        words: the most frequent words to know; the others become UNK. None knows them all.
        lower: take everything in lower case.
        longest: the most words a sentence may have, longer ones being left out; without it a line of more than 500 is
            refused.
        pieces: cut words into at most so many pieces, learnt from the training part, instead of knowing them whole.
    """
    if part not in ("train", "test"):
        raise UserError(f"part must be train or test, got {part!r}")
    if not 0 <= held_out < 1:
        raise UserError(f"held_out must lie in [0, 1), got {held_out}")
    place, column = resolve_path(path, root)
    copy = hub.open_copy(place) if hub.is_copy(place) else None

    def chosen(text: str, where: Path) -> Chosen:
        if longest is None:
            _refuse_endless(text, where, letters=pieces is not None)
        return _short_enough(_lines(text, lower), longest, str(where))

    if copy is not None and copy.parted:
        own = {name: copy.split(name) for name in ("train", part)}
        split = f"its own {own[part].where.name} part"
        rows: dict[str, Chosen] = {
            name: chosen(each.text(column), each.where) for name, each in own.items()
        }
    else:
        text = _decoded(_contents(place), place) if copy is None else copy.whole().text(column)
        rows, split = _divided(chosen(text, place), part, held_out)
    if pieces is None:
        known = vocabulary(rows["train"].sentences, words)
        return replace(_sentences(rows[part], known, str(place), split), lower=lower)
    learnt = learn_pieces(rows["train"].sentences, pieces)
    cut = rows[part]._replace(sentences=[learnt.cut(sentence) for sentence in rows[part].sentences])
    return replace(
        _sentences(cut, SPECIAL + learnt.names, str(place), split), cut=learnt.cut, lower=lower
    )


def _divided(chosen: Chosen, part: Part, held_out: float) -> tuple[dict[str, Chosen], str]:
    """The training part and the one asked for, and which that is in words."""
    count = len(chosen.sentences)
    indices: dict[str, np.ndarray] = {
        each: split_indices(count, each, held_out, "sentences") for each in ("train", part)
    }
    rows = {
        name: Chosen([chosen.sentences[i] for i in among], chosen.note)
        for name, among in indices.items()
    }
    return (
        rows,
        f"{part}: {len(indices[part]):,} of {count:,} sentences"
        if held_out
        else "all, no held-out sentences",
    )


def find(root: Path | None = None) -> Path | None:
    """The folder that holds the three files of Penn Treebank, or the archive of them."""
    for folder in [given / inner for given in data_roots(root) for inner in _FOLDERS]:
        if all((folder / f"ptb.{split}.txt").is_file() for split in COUNTS):
            return folder
        if (folder / ARCHIVE).is_file():
            return folder / ARCHIVE
    return None


def found(root: Path | None = None) -> str:
    """What of Penn Treebank is there, for people."""
    place = find(root)
    return "no file" if place is None else str(place)


def _ptb_lines(place: Path, split: str) -> list[list[str]]:
    name = f"ptb.{split}.txt"
    try:
        if place.is_dir():
            data = (place / name).read_bytes()
        else:
            with zipfile.ZipFile(place) as archive:
                data = archive.read(
                    next(inner for inner in archive.namelist() if inner.split("/")[-1] == name)
                )
    except (OSError, zipfile.BadZipFile, zlib.error, StopIteration) as error:
        raise UserError(
            f"{name} cannot be read from {place}: {str(error) or 'it is not there'}"
        ) from None
    lines = _lines(_decoded(data, place / name))
    if len(lines) != COUNTS[split]:
        raise UserError(
            f"{place / name} holds {len(lines):,} sentences instead of {COUNTS[split]:,}"
        )
    return lines


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from None


def _lines(text: str, lower: bool = False) -> list[list[str]]:
    """The words of every line that has any."""
    split = (line.split() for line in (text.lower() if lower else text).split("\n"))
    return [words for words in split if words]


def _refuse_endless(text: str, where: Path, letters: bool) -> None:
    """Names the first line that nobody broke, such as a book of one paragraph; by its `letters` where they may count.

    One such line makes a batch of its own length, thirty-odd sentences wide.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        words = len(line.split()) if len(line) > 2 * _LONG else 0
        size = f"{words:,} words" if words > _LONG else f"{len(line):,} letters"
        if words > _LONG or (letters and len(line) > _LONG_LETTERS):
            raise UserError(
                f"line {number:,} of {where} has {size}, too long for a sentence: break it, or set the most words that "
                f"a sentence may have, such as data.longest=100, and longer ones are left out"
            )


def _short_enough(lines: list[list[str]], longest: int | None, where: str) -> Chosen:
    if longest is not None and longest < 1:
        raise UserError(f"longest must be 1 word or more, got {longest}")
    kept = lines if longest is None else [words for words in lines if len(words) <= longest]
    left_out = len(lines) - len(kept)
    if not kept:
        raise UserError(
            f"no sentences in {where}" + (f" of {longest} words or fewer" if lines else "")
        )
    return Chosen(
        kept,
        f"; {left_out:,} of {len(lines):,} left out, longer than {longest} words"
        if left_out
        else "",
    )


def _sentences(chosen: Chosen, words: tuple[str, ...], source: str, split: str) -> SentenceDataset:
    numbers = to_numbers(chosen.sentences, words)
    tokens, lengths, note = (
        torch.from_numpy(numbers.tokens),
        torch.from_numpy(numbers.lengths),
        numbers.note(words),
    )
    return SentenceDataset(tokens, lengths, words, source + chosen.note + note, split)


def _load_file(settings: TextFile, root: Path | None) -> SentenceDataset:
    words, lower, longest, pieces = (
        settings.vocabulary_size,
        settings.lower,
        settings.max_words,
        settings.subwords,
    )
    return text_file(
        settings.path, settings.split, settings.held_out, root, words, lower, longest, pieces=pieces
    )


def _test_of_file(settings: TextFile, root: Path | None) -> TextFile | None:
    return (
        replace(settings, split="test")
        if settings.held_out > 0 or brings_test(settings.path, root)
        else None
    )


PTB = Source(
    "ptb",
    PennTreebank,
    lambda settings, root: penn_treebank(settings.split, root),
    needs=NEEDS,
    found=found,
    about="Penn Treebank (Mikolov's): 42,068 sentences to train on, 3,370 and 3,761 held out",
    test=lambda settings, root: replace(settings, split="test"),
    validation=lambda settings: replace(settings, split="valid"),
)
FILE = Source(
    "text",
    TextFile,
    _load_file,
    test=_test_of_file,
    found=named_by_setting,
    about="your own text, one sentence a line: --set data='TextFile(\"my/text.txt\")'",
    needs=f"a UTF-8 text file, or {hub.NEEDS}, whose test split is held out; a path as given, or inside a data folder",
)
