"""Switchboard: telephone conversations as published by Zhao et al. 2017.

The text belongs to the LDC: it is read from the user's files and never shipped.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from controlvae.errors import UserError
from controlvae.lab.config import Switchboard
from controlvae.lab.data.paths import data_roots, find_file
from controlvae.lab.data.registry import DatasetSpec
from controlvae.lab.data.text.dialog_file import read_dialogs
from controlvae.lab.data.text.dialogs import (
    DialogDataset,
    DialogVocabulary,
    build_dialog_dataset,
    merge_turns,
)

SPLITS = ("train", "valid", "test")
_ACTS_FILE = "train_swda"  # Switchboard's dialog act corpus: half of the dialogs, cut into acts
_TRAIN_FILES = ("train", _ACTS_FILE)
NEEDS = (
    "train.jsonl (2,316 dialogs, Zhao et al. 2017) or train_swda.jsonl, valid.jsonl and "
    "test.jsonl, each plain or as .jsonl.gz; here or in switchboard/"
)


def switchboard(
    split: Literal["train", "valid", "test"] = "train",
    root: Path | None = None,
    vocabulary_size: int | None = 10_000,
    window: int = 9,
    max_words: int | None = 38,
    join_acts: bool = False,
) -> DialogDataset:
    """Load a split of Switchboard with the words, topics and acts of the training set.

    Args:
        split: "train", "valid" or "test".
        root: A folder to search before the usual ones.
        vocabulary_size: The number of most frequent words to know. None takes all.
        window: The number of utterances in a context, at most.
        max_words: The number of words to which an utterance is cut. With BOS and EOS, 38 words
            are the 40 tokens of the released code.
        join_acts: Join what a speaker says without a break, if the training dialogs are cut into
            dialog acts (`train_swda`). The other files hold longer utterances as published, and
            are left as they are.
    """
    if split not in SPLITS:
        raise UserError(f"split must be {', '.join(SPLITS)}, got {split!r}")
    places = {name: _find_split(name, root) for name in dict.fromkeys(("train", split))}
    for name, place in places.items():
        if place is None:
            folders = ", ".join(map(str, data_roots(root)))
            raise UserError(f"no {name} split of Switchboard in {folders}; it needs {NEEDS}")
    dialogs = {name: read_dialogs(place) for name, place in places.items() if place is not None}
    is_joined = join_acts and _holds_acts(places["train"])
    if is_joined:
        dialogs["train"] = [merge_turns(dialog) for dialog in dialogs["train"]]
    names = DialogVocabulary.build(dialogs["train"], vocabulary_size)
    note = ", the acts of a turn joined" if is_joined and split == "train" else ""
    source = f"Switchboard from {places[split]}{note}"
    split_name = f"the {split} part, {len(dialogs[split]):,} dialogs"
    return build_dialog_dataset(dialogs[split], names, window, max_words, source, split_name)


def describe_switchboard(root: Path | None = None) -> str:
    """Return the files of the splits that exist, or "no file"."""
    places = [_find_split(name, root) for name in SPLITS]
    return ", ".join(str(place) for place in places if place is not None) or "no file"


def _holds_acts(place: Path | None) -> bool:
    return place is not None and place.name.startswith(_ACTS_FILE)


def _find_split(split: str, root: Path | None) -> Path | None:
    names = _TRAIN_FILES if split == "train" else (split,)
    paths = [
        f"{folder}{name}.jsonl{suffix}"
        for folder in ("switchboard/", "")
        for name in names
        for suffix in ("", ".gz")
    ]
    return find_file(paths, root)


def _load(settings: Switchboard, root: Path | None) -> DialogDataset:
    return switchboard(
        settings.split,
        root,
        settings.vocabulary_size,
        settings.window,
        settings.max_words,
        settings.join_acts,
    )


SPECS = [
    DatasetSpec(
        "switchboard",
        Switchboard,
        _load,
        about="Switchboard: telephone conversations with topics and dialog acts; 60 validation and "
        "62 test dialogs",
        needs=NEEDS,
        describe_files=describe_switchboard,
        test_settings=lambda settings, root: replace(settings, split="test"),
        validation_settings=lambda settings: replace(settings, split="valid"),
    )
]
