"""Penn Treebank, Mikolov's version: lower case, 9,999 words, numbers as N, rare words as <unk>.

This is the version that the paper uses. Its text belongs to the LDC: it is read from the user's
files and never shipped.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from controlvae.errors import UserError
from controlvae.lab.config import PennTreebank
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.text.sentences import (
    SentenceDataset,
    build_sentence_dataset,
    split_lines,
)
from controlvae.lab.data.text.text_file import decode_utf8
from controlvae.lab.data.text.vocabulary import build_vocabulary
from controlvae.lab.reading import READ_ERRORS, open_zip, read_bytes, read_member

_MAX_BYTES = 64 << 20  # of a split, which has 5 MB

COUNTS = {"train": 42_068, "valid": 3_370, "test": 3_761}
ARCHIVE = "ptb_mikolov.zip"
NEEDS = (
    f"ptb.train.txt, ptb.valid.txt and ptb.test.txt (Mikolov's, 6 MB), or {ARCHIVE}; "
    f"here or in ptb/"
)
_FOLDERS = ("", "ptb", "simple-examples/data", "ptb/simple-examples/data")


def penn_treebank(
    split: Literal["train", "valid", "test"] = "train", root: Path | None = None
) -> SentenceDataset:
    """Load a split of Penn Treebank with the vocabulary of its training text.

    The vocabulary has 10,003 entries with the four special tokens.

    Args:
        split: "train", "valid" or "test".
        root: A folder to search before the usual ones.
    """
    if split not in COUNTS:
        raise UserError(f"split must be {', '.join(COUNTS)}, got {split!r}")
    place = find_penn_treebank(root)
    if place is None:
        places = ", ".join(map(str, data_roots(root)))
        raise UserError(f"no Penn Treebank in {places}; it needs {NEEDS}")
    texts = {name: _read_split(place, name) for name in dict.fromkeys(("train", split))}
    words = build_vocabulary(texts["train"])
    source = f"Penn Treebank from {place}"
    return build_sentence_dataset(texts[split], words, source, f"the {split} part")


def find_penn_treebank(root: Path | None = None) -> Path | None:
    """Return the folder with the three files or the archive of them, or None."""
    for folder in [each / inner for each in data_roots(root) for inner in _FOLDERS]:
        if all((folder / f"ptb.{split}.txt").is_file() for split in COUNTS):
            return folder
        if (folder / ARCHIVE).is_file():
            return folder / ARCHIVE
    return None


def describe_penn_treebank(root: Path | None = None) -> str:
    """Return the path of the files, or "no file"."""
    return str(find_penn_treebank(root) or "no file")


def _read_split(place: Path, split: str) -> list[list[str]]:
    name = f"ptb.{split}.txt"
    try:
        if place.is_dir():
            data = read_bytes(place / name, _MAX_BYTES)
        else:
            with open_zip(place) as archive:
                members = archive.namelist()
                found = next(each for each in members if each.split("/")[-1] == name)
                data = read_member(archive, found, _MAX_BYTES)
    except (*READ_ERRORS, StopIteration) as error:
        reason = str(error) or "it is missing"
        raise UserError(f"{name} cannot be read from {place}: {reason}") from None
    lines = split_lines(decode_utf8(data, place / name))
    if len(lines) != COUNTS[split]:
        raise UserError(
            f"{place / name} holds {len(lines):,} sentences instead of {COUNTS[split]:,}"
        )
    return lines


SPECS = [
    DatasetSpec(
        "ptb",
        PennTreebank,
        lambda settings, root: penn_treebank(settings.split, root),
        about="Penn Treebank (Mikolov's): 42,068 training, 3,370 validation and 3,761 test "
        "sentences",
        needs=NEEDS,
        describe_files=describe_penn_treebank,
        test_settings=lambda settings, root: replace(settings, split="test"),
        validation_settings=lambda settings: replace(settings, split="valid"),
    )
]
