"""From the data settings of an experiment to its examples; and what each data set needs and found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.data import celeba, cifar10, hub, images, shapes2d, switchboard, text
from controlvae.data.dialog import Dialogs
from controlvae.data.examples import Examples
from controlvae.data.grammar import grammar_sentences
from controlvae.data.roots import data_roots, located
from controlvae.data.small_talk import small_talk
from controlvae.errors import unknown
from controlvae.experiments import (
    CIFAR10,
    CelebA,
    DataSettings,
    DialogFile,
    Grammar,
    Images,
    PennTreebank,
    Shapes2D,
    SmallTalk,
    Switchboard,
    TextFile,
)
from controlvae.experiments.data import DialogSettings, TextSettings


def load(settings: DataSettings, root: Path | None = None) -> Examples:
    """The examples an experiment asks for, on the host."""
    match settings:
        case Shapes2D():
            return shapes2d.load(settings, root)
        case CIFAR10():
            return cifar10.load(settings, root)
        case CelebA():
            return celeba.load(settings, root)
        case Images():
            return images.load(settings, root)
        case SmallTalk() | Switchboard() | DialogFile():
            return _dialogs(settings, root)
    return _sentences(settings, root)


def _sentences(settings: TextSettings, root: Path | None) -> text.Sentences:
    match settings:
        case Grammar(sentences, part):
            return grammar_sentences(sentences, part=part)
        case PennTreebank(split):
            return text.penn_treebank(split, root)
        case TextFile(path, share, part, words, lower, longest, pieces):
            return text.text_file(path, part, share, root, words, lower, longest, pieces=pieces)


def _dialogs(settings: DialogSettings, root: Path | None) -> Dialogs:
    match settings:
        case SmallTalk(dialogs, part, window):
            return small_talk(dialogs, part=part, window=window)
        case Switchboard(split, words, window, longest):
            return switchboard.switchboard(split, root, words, window, longest)
        case DialogFile(path, share, part, words, window, longest):
            return switchboard.dialog_file(path, part, share, root, words, window, longest)


def held_out(settings: DataSettings, root: Path | None = None) -> DataSettings | None:
    """The test part of the same data, all of it; None where there is none, or where it is what a run trains on."""
    changes: dict[str, Any]
    match settings:
        case CIFAR10(split="train") | CelebA(split="train"):
            changes = {"split": "test", "images": None}
        case Images(part="train") if settings.held_out > 0 or _brings_test(settings.path, root):
            changes = {"part": "test", "images": None}
        case Grammar(part="train"):
            changes = {"part": "test", "sentences": min(settings.sentences, 2_000)}
        case SmallTalk(part="train"):
            changes = {"part": "test", "dialogs": min(settings.dialogs, 500)}
        case PennTreebank(split="train") | Switchboard(split="train"):
            changes = {"split": "test"}
        case TextFile(part="train") if settings.held_out > 0 or _brings_test(settings.path, root):
            changes = {"part": "test"}
        case DialogFile(part="train") if settings.held_out > 0:
            changes = {"part": "test"}
        case _:
            return None
    return replace(settings, **changes)


def validation_part(settings: DataSettings) -> DataSettings | None:
    """The part that a data set itself sets aside for validation; None where it has none."""
    match settings:
        case PennTreebank(split="train") | Switchboard(split="train"):
            return replace(settings, split="valid")
        case CelebA(split="train"):
            return replace(settings, split="valid", images=None)
    return None


def _brings_test(path: str, root: Path | None) -> bool:
    place, _ = located(path, root)
    return hub.is_copy(place) and hub.open_copy(place).parted


class Source(NamedTuple):
    """What a data set needs and what of it is there."""

    name: str
    about: str
    needs: str
    looked_in: list[Path]
    found: str


def describe(name: str, root: Path | None = None) -> Source:
    """A data set by name, for people."""
    if name not in DATA_SETS:
        raise unknown("data set", name, DATA_SETS)
    about, needs, found = DATA_SETS[name]
    return Source(name, about, needs, data_roots(root), found(root))


DATA_SETS: dict[str, tuple[str, str, Callable[[Path | None], str]]] = {
    "shapes2d": (
        "2D Shapes (dSprites): 737,280 binary 64x64 pictures; factors shape 3, scale 6, orientation 40, x 32, y 32",
        f"no files: rendered from the factors. Used instead where present: {shapes2d.ORIGINAL} (26 MB, "
        f"github.com/google-deepmind/dsprites-dataset)",
        shapes2d.found,
    ),
    "cifar10": (
        "CIFAR-10: 50,000 colour photographs to train on and 10,000 to test on, 32x32, made 64x64 or 128x128",
        f"{cifar10.NEEDS}. Decoded once, and kept in $CONTROLVAE_CACHE, else ~/.cache/controlvae (2.5 GB at 128)",
        cifar10.found,
    ),
    "celeba": (
        "CelebA: 162,770 aligned faces to train on, 19,867 and 19,962 held out, 178x218: --set 'data=CelebA()', or "
        "CelebA(64, fit=148) for 64x64 of the middle 148x148",
        f"{celeba.NEEDS}. Decoded once, and kept in the cache (8 GB at 128). The presets and table-celeba take "
        f"celeba/celeba_10k_89x109.npz instead: the first 10,000 faces, halved by examples/first_faces.py",
        celeba.found,
    ),
    "images": (
        "your own pictures, with a table of factors if you have one: --set data='Images(\"my/folder\", size=64)'",
        "a folder or .zip of image files, or a .npy or .npz array: (N, H, W), (N, H, W, C) or (N, C, H, W) of uint8, "
        f"bool, or floats in [0, 1]; or {hub.NEEDS}, whose test split is held out; a path as given, or inside a data "
        "folder",
        images.found,
    ),
    "grammar": (
        "sentences drawn from a small grammar: 392 words, topic 8, tense 3, number 2, polarity 2",
        "no files",
        lambda root: "drawn when it is needed: no file",
    ),
    "ptb": (
        "Penn Treebank (Mikolov's): 42,068 sentences to train on, 3,370 and 3,761 held out",
        text.NEEDS,
        text.found,
    ),
    "text": (
        "your own text, one sentence a line: --set data='TextFile(\"my/text.txt\")'",
        f"a UTF-8 text file, or {hub.NEEDS}, whose test split is held out; a path as given, or inside a data folder",
        lambda root: "named by the setting itself: no file",
    ),
    "small-talk": (
        "dialogs drawn from a small grammar: topic 8, acts 7",
        "no files",
        lambda root: "drawn when it is needed: no file",
    ),
    "switchboard": (
        "Switchboard: telephone conversations with topics and dialog acts, 60 and 62 of them held out",
        switchboard.NEEDS,
        switchboard.found,
    ),
    "dialog": (
        "your own dialogs: --set data='DialogFile(\"my/dialogs.jsonl\")'",
        'a JSON object a line, {"topic": "...", "utts": [["A", "text", ["act"]], ...]}, without topics and acts where '
        "there are none; as it is or as .gz; a path as given, or inside a data folder",
        lambda root: "named by the setting itself: no file",
    ),
}
