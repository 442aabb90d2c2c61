"""User-supplied dialogs: one JSON object per line, in the format of Zhao et al. 2017.

An object has `utts`, a list of [speaker, text] or [speaker, text, [act, sentiment]]. It may have a
`topic` and, under the speakers' names A and B, `age`, `education` and `sex`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config import DialogFile
from controlvae.lab.data.paths import resolve_path
from controlvae.lab.data.registry import DatasetSpec, describe_setting_path
from controlvae.lab.data.splits import TrainTest, split_indices
from controlvae.lab.data.text.dialogs import (
    UNKNOWN_PROFILE,
    Dialog,
    DialogDataset,
    DialogVocabulary,
    Utterance,
    build_dialog_dataset,
)
from controlvae.lab.reading import (
    READ_ERRORS,
    decompress_gzip,
    parse_json,
    read_bytes,
    shorten,
)


def dialog_file(
    path: str,
    split: TrainTest = "train",
    held_out: float = 0.1,
    root: Path | None = None,
    vocabulary_size: int | None = 10_000,
    window: int = 9,
    max_words: int | None = 38,
) -> DialogDataset:
    """Load dialogs from a file. Whole dialogs are held out.

    Args:
        path: The file, as given or inside a data folder.
        split: "train" or "test".
        held_out: The fraction of dialogs in the test set.
        root: A folder to search before the usual ones.
        vocabulary_size: The number of most frequent words to know. None takes all.
        window: The number of utterances in a context, at most.
        max_words: The number of words to which an utterance is cut. None keeps all.
    """
    if split not in ("train", "test"):
        raise UserError(f"split must be train or test, got {split!r}")
    place, _ = resolve_path(path, root)
    dialogs = read_dialogs(place)
    rows = {
        name: [dialogs[i] for i in split_indices(len(dialogs), name, held_out, "dialogs")]
        for name in ("train", split)
    }
    split_name = "all, no held-out dialogs"
    if held_out:
        split_name = f"{split}: {len(rows[split]):,} of {len(dialogs):,} dialogs"
    names = DialogVocabulary.build(rows["train"], vocabulary_size)
    return build_dialog_dataset(rows[split], names, window, max_words, str(place), split_name)


def read_dialogs(path: Path) -> list[Dialog]:
    """Read every dialog of a file, plain or compressed with gzip.

    Raises:
        UserError: The file or one of its lines cannot be read.
    """
    try:
        data = read_bytes(path)
        is_compressed = data[:2] == b"\x1f\x8b"
        text = (decompress_gzip(data) if is_compressed else data).decode("utf-8-sig")
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read as text: {error}") from None
    dialogs = [
        _parse_dialog(line, f"{path}, line {number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not dialogs:
        raise UserError(f"{path} holds no dialogs; it needs one JSON object per line")
    return dialogs


def split_words(text: str) -> list[str]:
    """Return lower-case words and punctuation: `it's` becomes three words."""
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def _parse_dialog(line: str, where: str) -> Dialog:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where} must be a JSON object: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("utts"), list):
        raise UserError(
            f"{where} must be an object with utts, a list of [speaker, text, [act, sentiment]]"
        )
    first = ("A", "B") if "A" in data or "B" in data else ()
    speakers = list(dict.fromkeys([*first, *_read_speakers(data["utts"], where)]))
    if len(speakers) > 2:
        names = shorten(", ".join(map(str, speakers[:4])))
        raise UserError(f"{where} has {len(speakers)} speakers, {names}; a dialog has two")
    utterances = [
        Utterance(speakers.index(each[0]), words, _read_act(each))
        for each in data["utts"]
        if (words := split_words(each[1]))  # utterances without words are skipped
    ]
    profiles = [_read_profile(data.get(str(name))) for name in [*speakers, "", ""][:2]]
    return Dialog(utterances, _clean_name(data.get("topic")), (profiles[0], profiles[1]))


def _read_speakers(utterances: Sequence[Any], where: str) -> list[str]:
    for each in utterances:
        is_list = isinstance(each, list) and len(each) >= 2
        if not (is_list and all(isinstance(part, str) for part in each[:2])):
            raise UserError(
                f"{where} has the utterance {shorten(each)}; expected [speaker, text, [act, sentiment]]"
            )
    return [each[0] for each in utterances]


def _read_act(utterance: Sequence[Any]) -> str:
    label = utterance[2] if len(utterance) > 2 else None
    return _clean_name(label[0] if isinstance(label, list) and label else label)


def _clean_name(value: object) -> str:
    return value.strip(' "').lower() if isinstance(value, str) else ""


def _read_profile(value: object) -> Sequence[float]:
    # Switchboard writes numbers as quoted text, and 9 for an unknown education.
    if not isinstance(value, dict):
        return UNKNOWN_PROFILE
    age, education = _read_number(value.get("age")), _read_number(value.get("education"))
    sex = _clean_name(value.get("sex"))
    level = education / 3 if education <= 3 else 0.0
    return age / 100, level, float(sex == "female"), float(sex == "male")


def _read_number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(number, 0.0), 150.0) if math.isfinite(number) else 0.0


def _load(settings: DialogFile, root: Path | None) -> DialogDataset:
    return dialog_file(
        settings.path,
        settings.split,
        settings.held_out,
        root,
        settings.vocabulary_size,
        settings.window,
        settings.max_words,
    )


def _test_settings(settings: DialogFile, root: Path | None) -> DialogFile | None:
    return replace(settings, split="test") if settings.held_out > 0 else None


SPECS = [
    DatasetSpec(
        "dialog",
        DialogFile,
        _load,
        about="your dialogs: --set data='DialogFile(\"my/dialogs.jsonl\")'",
        needs='one JSON object per line, {"topic": "...", "utts": [["A", "text", ["act"]], ...]}, '
        "topics and acts are optional; plain or .gz; a path as given, or inside a data folder",
        describe_files=describe_setting_path,
        test_settings=_test_settings,
    )
]
