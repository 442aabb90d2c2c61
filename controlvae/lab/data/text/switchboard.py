"""Switchboard, and any dialogs in the same form: a JSON object a line, as Zhao et al. 2017 publish them.

An object has `utts`, a list of [speaker, text] or [speaker, text, [act, sentiment]], and may have `topic` and, under
the speakers' names A and B, `age`, `education` and `sex`. Switchboard's text belongs to the LDC: it is read where it is
found and never shipped.
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from controlvae.errors import UserError
from controlvae.lab.config import DialogFile, Switchboard
from controlvae.lab.data.paths import data_roots, find_file, resolve_path
from controlvae.lab.data.source import Source, named_by_setting
from controlvae.lab.data.splits import Part, split_indices
from controlvae.lab.data.text.dialogs import (
    NOBODY,
    Dialog,
    DialogDataset,
    Names,
    Utterance,
    as_examples,
)

Split = Literal["train", "valid", "test"]
SPLITS = ("train", "valid", "test")
_TRAIN = ("train", "train_swda")  # the second: Switchboard's dialog act corpus, half of the first
NEEDS = (
    "train.jsonl (2,316 dialogs, Zhao et al. 2017) or train_swda.jsonl, valid.jsonl and test.jsonl, each as it is or "
    "as .jsonl.gz; here or in switchboard/"
)


def switchboard(
    split: Split = "train",
    root: Path | None = None,
    words: int | None = 10_000,
    window: int = 9,
    longest: int | None = 38,
) -> DialogDataset:
    """Switchboard's telephone conversations, with the words, topics and acts of the training part.

    Args:
        split: train, valid or test.
        root: a folder to look in before the usual ones.
        words: the most frequent words to know.
        window: utterances of a context at most.
        longest: words an utterance is cut to: with its beginning and its end the released code's 40 tokens.
    """
    if split not in SPLITS:
        raise UserError(f"split must be {', '.join(SPLITS)}, got {split!r}")
    places = {name: _find(name, root) for name in dict.fromkeys(("train", split))}
    for name, place in places.items():
        if place is None:
            looked = ", ".join(map(str, data_roots(root)))
            raise UserError(f"no {name} part of Switchboard in {looked}; it needs {NEEDS}")
    dialogs = {name: read_dialogs(place) for name, place in places.items() if place is not None}
    names, count = Names.of(dialogs["train"], words), len(dialogs[split])
    source = f"Switchboard from {places[split]}"
    return as_examples(
        dialogs[split], names, window, longest, source, f"the {split} part, {count:,} dialogs"
    )


def dialog_file(
    path: str,
    part: Part = "train",
    held_out: float = 0.1,
    root: Path | None = None,
    words: int | None = 10_000,
    window: int = 9,
    longest: int | None = 38,
) -> DialogDataset:
    """Any dialogs of that form, whole dialogs of them held out; the rest is as in `switchboard`."""
    if part not in ("train", "test"):
        raise UserError(f"part must be train or test, got {part!r}")
    found, _ = resolve_path(path, root)
    dialogs = read_dialogs(found)
    rows = {
        name: [dialogs[i] for i in split_indices(len(dialogs), name, held_out, "dialogs")]
        for name in ("train", part)
    }
    split = (
        f"{part}: {len(rows[part]):,} of {len(dialogs):,} dialogs"
        if held_out
        else "all, no held-out dialogs"
    )
    return as_examples(
        rows[part], Names.of(rows["train"], words), window, longest, str(found), split
    )


def read_dialogs(path: Path) -> list[Dialog]:
    """Every dialog of a file, in order."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text: {error}") from None
    dialogs = [
        _dialog(line, f"{path}, line {n}")
        for n, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not dialogs:
        raise UserError(f"{path} holds no dialogs; it needs a JSON object a line")
    return dialogs


def words_of(text: str) -> list[str]:
    """Lower case, letters and digits apart from punctuation: `it's` is three."""
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def found(root: Path | None = None) -> str:
    """What of Switchboard is there, for people."""
    there = [str(place) for name in SPLITS if (place := _find(name, root)) is not None]
    return ", ".join(there) or "no file"


def _find(split: str, root: Path | None) -> Path | None:
    names = _TRAIN if split == "train" else (split,)
    files = [
        f"{folder}{name}.jsonl{end}"
        for folder in ("switchboard/", "")
        for name in names
        for end in ("", ".gz")
    ]
    return find_file(files, root)


def _dialog(line: str, where: str) -> Dialog:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON, of which each line must be an object: {error}"
        ) from None
    if not isinstance(plain, dict) or not isinstance(plain.get("utts"), list):
        raise UserError(
            f"{where} must be an object with utts, a list of [speaker, text, [act, sentiment]]"
        )
    speakers = list(
        dict.fromkeys(
            [*("AB" if "A" in plain or "B" in plain else ()), *_speakers(plain["utts"], where)]
        )
    )
    if len(speakers) > 2:
        raise UserError(
            f"{where} has {len(speakers)} speakers, {', '.join(map(str, speakers[:4]))}; a dialog has two"
        )
    said = [
        Utterance(speakers.index(one[0]), words, _act(one))
        for one in plain["utts"]
        if (words := words_of(one[1]))  # of no words, nothing was said
    ]
    first, second = (_profile(plain.get(str(name))) for name in [*speakers, "", ""][:2])
    return Dialog(said, _plain_name(plain.get("topic")), (first, second))


def _speakers(utterances: Sequence[Any], where: str) -> list[str]:
    for one in utterances:
        if not (
            isinstance(one, list)
            and len(one) >= 2
            and all(isinstance(part, str) for part in one[:2])
        ):
            raise UserError(
                f"{where} has the utterance {one!r}; it must be [speaker, text, [act, sentiment]]"
            )
    return [one[0] for one in utterances]


def _act(utterance: Sequence[Any]) -> str:
    known = utterance[2] if len(utterance) > 2 else None
    return _plain_name(known[0] if isinstance(known, list) and known else known)


def _plain_name(value: object) -> str:
    return value.strip(' "').lower() if isinstance(value, str) else ""


def _profile(value: object) -> Sequence[float]:
    """Numbers about a speaker; Switchboard writes them as text in quotes, and 9 for an education that is not known."""
    if not isinstance(value, dict):
        return NOBODY
    age, education, sex = (
        _number(value.get("age")),
        _number(value.get("education")),
        _plain_name(value.get("sex")),
    )
    return (
        age / 100,
        education / 3 if education <= 3 else 0.0,
        float(sex == "female"),
        float(sex == "male"),
    )


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
    return min(max(number, 0.0), 150.0) if math.isfinite(number) else 0.0


def _load(settings: Switchboard, root: Path | None) -> DialogDataset:
    return switchboard(
        settings.split, root, settings.vocabulary_size, settings.window, settings.max_words
    )


def _load_file(settings: DialogFile, root: Path | None) -> DialogDataset:
    kept = (settings.vocabulary_size, settings.window, settings.max_words)
    return dialog_file(settings.path, settings.split, settings.held_out, root, *kept)


SOURCE = Source(
    "switchboard",
    Switchboard,
    _load,
    needs=NEEDS,
    found=found,
    about="Switchboard: telephone conversations with topics and dialog acts, 60 and 62 of them held out",
    test=lambda settings, root: replace(settings, split="test"),
    validation=lambda settings: replace(settings, split="valid"),
)
FILE = Source(
    "dialog",
    DialogFile,
    _load_file,
    found=named_by_setting,
    about="your own dialogs: --set data='DialogFile(\"my/dialogs.jsonl\")'",
    needs='a JSON object a line, {"topic": "...", "utts": [["A", "text", ["act"]], ...]}, without topics and acts '
    "where there are none; as it is or as .gz; a path as given, or inside a data folder",
    test=lambda settings, root: replace(settings, split="test") if settings.held_out > 0 else None,
)
