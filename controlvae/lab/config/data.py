"""What a run may be trained on, as settings."""

from dataclasses import dataclass
from typing import Literal

from controlvae.lab.config.validation import check_choices, require


@dataclass(frozen=True)
class Shapes2D:
    """2D Shapes (dSprites): rendered from their factors, or read from the original file where it is at hand."""

    size: Literal[64, 32] = 64
    images: int | None = None  # a seeded subset of so many; None is all 737,280

    def __post_init__(self) -> None:
        check_choices(self)
        require(
            self.images is None or 0 < self.images <= 737_280,
            f"images must lie in 1..737280, got {self.images}",
        )


@dataclass(frozen=True)
class CIFAR10:
    """CIFAR-10, made larger bilinearly; the paper takes it at 128."""

    size: Literal[32, 64, 128] = 128
    split: Literal["train", "test"] = "train"
    images: int | None = None  # a fixed subset of so many; None is the whole split

    def __post_init__(self) -> None:
        check_choices(self)
        count = 50_000 if self.split == "train" else 10_000
        require(
            self.images is None or 0 < self.images <= count,
            f"images must lie in 1..{count}, got {self.images}",
        )


# How a picture becomes square: its middle as large as it gets, all of it squeezed, or so many pixels of its middle.
Fit = Literal["crop", "stretch"] | int
Unreadable = Literal[
    "refuse", "skip"
]  # what to do about files that are damaged, missing, or too small to crop


def _check_fit(fit: Fit) -> None:
    known = fit in ("crop", "stretch") or (isinstance(fit, int) and fit > 0)
    require(known, f"fit must be crop, stretch or a number of pixels, got {fit!r}")


@dataclass(frozen=True)
class CelebA:
    """CelebA's aligned faces, 178x218, with its official partition; the paper squeezes them into 128x128.

    `fit=148` is the crop most others take.
    """

    size: int = 128
    fit: Fit = "stretch"
    split: Literal["train", "valid", "test"] = "train"
    images: int | None = None  # a fixed subset of so many
    unreadable: Unreadable = "refuse"

    def __post_init__(self) -> None:
        require(0 < self.size <= 178, f"size must lie in 1..178, got {self.size}")
        _check_fit(self.fit)
        check_choices(self)
        require(
            self.images is None or self.images > 0, f"images must be positive, got {self.images}"
        )


@dataclass(frozen=True)
class Images:
    """Your own pictures: a folder or zip of image files, or a `.npy` or `.npz` array (`file.npz:name` for one of many).

    Or a folder of Hugging Face's `datasets` (`folder:column` for one of many), whose test split, where it has one, is
    the test part whatever `held_out` says. Files come in the order of their names. `factors` is a table of ground
    truth, a row per picture: a CSV that begins with the factors' names (`table.csv:shape,scale` takes two of them), or
    a NumPy file.
    """

    path: str
    size: int | None = (
        None  # made size x size; None takes the pictures as they are, all of one size
    )
    fit: Fit = "crop"
    factors: str | None = None
    held_out: float = 0.0  # the share kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    images: int | None = None  # a fixed subset of so many
    unreadable: Unreadable = "refuse"

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a folder, a zip, or a .npy or .npz file")
        require(
            self.size is None or 0 < self.size <= 4096, f"size must lie in 1..4096, got {self.size}"
        )
        _check_fit(self.fit)
        require(
            self.size is not None or isinstance(self.fit, str),
            f"fit={self.fit} needs size, e.g. size=64",
        )
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        check_choices(self)
        require(
            self.images is None or self.images > 0, f"images must be positive, got {self.images}"
        )


@dataclass(frozen=True)
class Grammar:
    """Sentences drawn from a small grammar, with their topic, tense, number and polarity: no download."""

    sentences: int = 10_000
    part: Literal["train", "test"] = "train"

    def __post_init__(self) -> None:
        require(self.sentences > 0, f"sentences must be positive, got {self.sentences}")
        check_choices(self)


@dataclass(frozen=True)
class PennTreebank:
    """Mikolov's Penn Treebank, a sentence a line."""

    split: Literal["train", "valid", "test"] = "train"

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True)
class TextFile:
    """Your own text: UTF-8, one sentence a line, words between white space.

    Or a folder of Hugging Face's `datasets` (`folder:column` for one of many), whose test split, where it has one, is
    the test part whatever `held_out` says.
    """

    path: str
    held_out: float = 0.1  # the share kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    words: int | None = None  # the most frequent words to know; None knows them all
    lower: bool = False  # everything in lower case
    longest: int | None = (
        None  # in words; longer sentences are left out and counted. None refuses more than 500
    )
    pieces: int | None = (
        None  # cut words into at most so many learnt pieces instead: none is unknown for being rare
    )

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a text file")
        require(
            self.pieces is None or self.pieces > 0, f"pieces must be positive, got {self.pieces}"
        )
        require(self.pieces is None or self.words is None, "words and pieces exclude each other")
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        check_choices(self)
        require(self.words is None or self.words > 0, f"words must be positive, got {self.words}")
        require(
            self.longest is None or self.longest > 0,
            f"longest must be positive, got {self.longest}",
        )


@dataclass(frozen=True)
class SmallTalk:
    """Dialogs drawn from a small grammar, with their topics and acts: no download."""

    dialogs: int = 2_000
    part: Literal["train", "test"] = "train"
    window: int = 4  # utterances before a response that are known, at most

    def __post_init__(self) -> None:
        require(self.dialogs > 0, f"dialogs must be positive, got {self.dialogs}")
        check_choices(self)
        require(self.window > 0, f"window must be positive, got {self.window}")


@dataclass(frozen=True)
class Switchboard:
    """Telephone conversations with topics and dialog acts, as Zhao et al. 2017 publish them."""

    split: Literal["train", "valid", "test"] = "train"
    words: int | None = 10_000  # the most frequent words to know; None knows them all
    window: int = 9  # utterances before a response that are known, at most
    longest: int | None = (
        38  # words an utterance is cut to; how many were is said where the data is named
    )

    def __post_init__(self) -> None:
        check_choices(self)
        _check_dialogs(self.words, self.window, self.longest)


@dataclass(frozen=True)
class DialogFile:
    """Your own dialogs in the same form: a JSON object a line, with `utts` = [[speaker, text, [act]], ...]."""

    path: str
    held_out: float = 0.1  # the share of dialogs kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    words: int | None = 10_000
    window: int = 9
    longest: int | None = 38

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a file of dialogs")
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        check_choices(self)
        _check_dialogs(self.words, self.window, self.longest)


def _check_dialogs(words: int | None, window: int, longest: int | None) -> None:
    require(words is None or words > 0, f"words must be positive, got {words}")
    require(window > 0, f"window must be positive, got {window}")
    require(longest is None or longest > 0, f"longest must be positive, got {longest}")


PictureSettings = Shapes2D | CIFAR10 | CelebA | Images
TextSettings = Grammar | PennTreebank | TextFile
DialogSettings = SmallTalk | Switchboard | DialogFile
DataSettings = PictureSettings | TextSettings | DialogSettings
