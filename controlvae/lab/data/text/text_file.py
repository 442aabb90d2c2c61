"""User-supplied text: a file with one sentence per line, or a column of a `datasets` folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config import TextFile
from controlvae.lab.data import huggingface
from controlvae.lab.data.paths import has_test_split, resolve_path
from controlvae.lab.data.registry import DatasetSpec, describe_setting_path
from controlvae.lab.data.splits import TrainTest, split_indices
from controlvae.lab.data.text.sentences import (
    SentenceDataset,
    build_sentence_dataset,
    split_lines,
)
from controlvae.lab.data.text.subwords import learn_subwords
from controlvae.lab.data.text.vocabulary import SPECIAL_TOKENS, build_vocabulary
from controlvae.lab.reading import read_bytes

# Limits of a line if no limit is set. A batch of longer lines fills the memory.
_MAX_LINE_WORDS, _MAX_LINE_LETTERS = 500, 5_000


class SentenceSelection(NamedTuple):
    """Sentences that are short enough, and a note about the others."""

    sentences: list[list[str]]
    note: str


def text_file(
    path: str,
    split: TrainTest = "train",
    held_out: float = 0.1,
    root: Path | None = None,
    vocabulary_size: int | None = None,
    lower: bool = False,
    max_words: int | None = None,
    subwords: int | None = None,
) -> SentenceDataset:
    """Load UTF-8 text with one sentence per line and words separated by white space.

    The vocabulary is that of the training set. The choice of held-out lines is fixed, so that seeds
    of a run share their data.

    Args:
        path: The file, as given or inside a data folder; or a folder of `datasets`, followed by
            `:column` if it has several columns of text.
        split: "train" or "test".
        held_out: The fraction of sentences in the test set, if the data has no test split.
        root: A folder to search before the usual ones.
        vocabulary_size: The number of most frequent words to know; others become UNK. None takes
            all words.
        lower: Convert the text to lower case.
        max_words: The length of the longest sentence to keep. None raises an error for lines of
            more than 500 words.
        subwords: The size of a subword vocabulary that is learned from the training set and used
            instead of whole words.
    """
    if split not in ("train", "test"):
        raise UserError(f"split must be train or test, got {split!r}")
    if not 0 <= held_out < 1:
        raise UserError(f"held_out must lie in [0, 1), got {held_out}")
    place, column = resolve_path(path, root)

    def select(text: str, where: Path) -> SentenceSelection:
        if max_words is None:
            _check_line_lengths(text, where, count_letters=subwords is not None)
        return _select_short(split_lines(text, lower), max_words, str(where))

    selections, split_name = _read_splits(place, column, split, held_out, select)
    train, (sentences, note) = selections["train"].sentences, selections[split]
    source = f"{place}{note}"
    if subwords is None:
        words = build_vocabulary(train, vocabulary_size)
        return replace(build_sentence_dataset(sentences, words, source, split_name), lower=lower)
    learned = learn_subwords(train, subwords)
    tokens = [learned.tokenizer(sentence) for sentence in sentences]
    dataset = build_sentence_dataset(tokens, SPECIAL_TOKENS + learned.names, source, split_name)
    return replace(dataset, tokenizer=learned.tokenizer, lower=lower)


def decode_utf8(data: bytes, path: Path) -> str:
    """Decode the contents of a file.

    Raises:
        UserError: They are not UTF-8. The message names the file.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from None


def _read_splits(
    path: Path,
    column: str | None,
    split: TrainTest,
    held_out: float,
    select: Callable[[str, Path], SentenceSelection],
) -> tuple[dict[str, SentenceSelection], str]:
    """Return the training set and the requested split, and the name of the latter."""
    if not huggingface.is_datasets_folder(path):
        return _divide(select(decode_utf8(_read(path), path), path), split, held_out)
    folder = huggingface.open_datasets_folder(path)
    if not folder.has_test_split:
        return _divide(select(folder.undivided().text(column), path), split, held_out)
    parts = {name: folder.split(name) for name in ("train", split)}
    selections: dict[str, SentenceSelection] = {
        name: select(part.text(column), part.path) for name, part in parts.items()
    }
    return selections, f"its own {parts[split].path.name} part"


def _divide(
    selection: SentenceSelection, split: TrainTest, held_out: float
) -> tuple[dict[str, SentenceSelection], str]:
    """Return the training set and the requested split, and the name of the latter."""
    sentences, note = selection
    count = len(sentences)
    indices: dict[str, np.ndarray] = {
        name: split_indices(count, name, held_out, "sentences") for name in ("train", split)
    }
    selections = {
        name: SentenceSelection([sentences[i] for i in chosen], note)
        for name, chosen in indices.items()
    }
    if not held_out:
        return selections, "all, no held-out sentences"
    return selections, f"{split}: {len(indices[split]):,} of {count:,} sentences"


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _check_line_lengths(text: str, path: Path, count_letters: bool) -> None:
    """Raise UserError for a line that is too long, such as a book without line breaks.

    One such line makes a batch as wide as itself. `count_letters` also limits the letters, each of
    which may become a subword.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        words = len(line.split()) if len(line) > 2 * _MAX_LINE_WORDS else 0
        size = f"{words:,} words" if words > _MAX_LINE_WORDS else f"{len(line):,} letters"
        if words > _MAX_LINE_WORDS or (count_letters and len(line) > _MAX_LINE_LETTERS):
            raise UserError(
                f"line {number:,} of {path} has {size}, too long for a sentence; break it, or set "
                f"data.max_words, e.g. data.max_words=100, to skip longer sentences"
            )


def _select_short(lines: list[list[str]], max_words: int | None, where: str) -> SentenceSelection:
    if max_words is not None and max_words < 1:
        raise UserError(f"max_words must be 1 or more, got {max_words}")
    short = lines if max_words is None else [words for words in lines if len(words) <= max_words]
    skipped = len(lines) - len(short)
    if not short:
        limit = f" of {max_words} words or fewer" if lines else ""
        raise UserError(f"no sentences in {where}{limit}")
    note = ""
    if skipped:
        note = f"; {skipped:,} of {len(lines):,} skipped, longer than {max_words} words"
    return SentenceSelection(short, note)


def _load(settings: TextFile, root: Path | None) -> SentenceDataset:
    return text_file(
        settings.path,
        settings.split,
        settings.held_out,
        root,
        settings.vocabulary_size,
        settings.lower,
        settings.max_words,
        settings.subwords,
    )


def _test_settings(settings: TextFile, root: Path | None) -> TextFile | None:
    has_test_set = settings.held_out > 0 or has_test_split(settings.path, root)
    return replace(settings, split="test") if has_test_set else None


SPECS = [
    DatasetSpec(
        "text",
        TextFile,
        _load,
        about="your text, one sentence per line: --set data='TextFile(\"my/text.txt\")'",
        needs=f"a UTF-8 text file, or {huggingface.NEEDS}, whose test split is the test set; "
        "a path as given, or inside a data folder",
        describe_files=describe_setting_path,
        test_settings=_test_settings,
    )
]
