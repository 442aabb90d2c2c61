"""Settings of the data sets that a run can train on."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from controlvae.lab.config.validation import check_choices, require, require_positive


@dataclass(frozen=True)
class DataSettings:
    """Base class of the settings of all data sets.

    A field `split` names the split to load. A data set that can be trained on calls its training
    split "train".
    """


@dataclass(frozen=True)
class ImageSettings(DataSettings):
    """Base class of the settings of image data sets."""


@dataclass(frozen=True)
class TextSettings(DataSettings):
    """Base class of the settings of data sets of sentences."""


@dataclass(frozen=True)
class DialogSettings(DataSettings):
    """Base class of the settings of data sets of dialogs."""


# How an image becomes square: crop the largest central square, stretch the whole image, or crop
# the central square with this many pixels per side.
Fit = Literal["crop", "stretch"] | int
OnUnreadable = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Shapes2D(ImageSettings):
    """2D Shapes (dSprites), rendered from its factors or read from the original file.

    Attributes:
        size: Height and width in pixels.
        images: The number of images, a fixed random subset. None takes all 737,280.
    """

    size: Literal[64, 32] = 64
    images: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        require(
            self.images is None or 0 < self.images <= 737_280,
            f"images must lie in 1..737280, got {self.images}",
        )


@dataclass(frozen=True)
class Shapes3D(ImageSettings):
    """3D Shapes, rendered from its factors or read from the original file.

    Attributes:
        size: Height and width in pixels.
        images: The number of images, a fixed random subset. None takes all 480,000.
    """

    size: Literal[64, 32] = 64
    images: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        require(
            self.images is None or 0 < self.images <= 480_000,
            f"images must lie in 1..480000, got {self.images}",
        )


@dataclass(frozen=True)
class CIFAR10(ImageSettings):
    """CIFAR-10, enlarged bilinearly. The paper uses it at 128x128.

    Attributes:
        size: Height and width in pixels.
        split: The split as published.
        images: The number of images, a fixed random subset. None takes the whole split.
    """

    size: Literal[32, 64, 128] = 128
    split: Literal["train", "test"] = "train"
    images: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        count = 50_000 if self.split == "train" else 10_000
        require(
            self.images is None or 0 < self.images <= count,
            f"images must lie in 1..{count}, got {self.images}",
        )


@dataclass(frozen=True)
class CelebA(ImageSettings):
    """CelebA's aligned faces, 178x218, with its official partition.

    The paper stretches them to 128x128. Most other work uses `fit=148`.

    Attributes:
        size: Height and width in pixels.
        fit: How an image becomes square: "crop", "stretch", or the side of a central crop.
        split: The split as published.
        images: The number of images, a fixed random subset. None takes the whole split.
        unreadable: What to do with files that are corrupt, missing or too small to crop.
    """

    size: int = 128
    fit: Fit = "stretch"
    split: Literal["train", "valid", "test"] = "train"
    images: int | None = None
    unreadable: OnUnreadable = "refuse"

    def __post_init__(self) -> None:
        require(0 < self.size <= 178, f"size must lie in 1..178, got {self.size}")
        _check_fit(self.fit)
        check_choices(self)
        require_positive(self, "images")


@dataclass(frozen=True)
class Images(ImageSettings):
    """Your images: a folder or zip of image files, or a `.npy` or `.npz` array.

    A folder of Hugging Face's `datasets` also works. If it has a test split, that is the test set
    and `held_out` is ignored. Files are sorted by name.

    Attributes:
        path: The folder or file; `file.npz:name` or `folder:column` selects one of several.
        size: Height and width in pixels. None keeps the images' size, which must be the same.
        fit: How an image becomes square: "crop", "stretch", or the side of a central crop.
        factors: A table of ground truth with a row per image. A CSV file starts with the names
            of the factors (`table.csv:shape,scale` selects two of them); NumPy files work, too.
        held_out: The fraction of images in the test set, a fixed random choice.
        split: The training or the test set.
        images: The number of images, a fixed random subset. None takes the whole split.
        unreadable: What to do with files that are corrupt or too small to crop.
    """

    path: str
    size: int | None = None
    fit: Fit = "crop"
    factors: str | None = None
    held_out: float = 0.0
    split: Literal["train", "test"] = "train"
    images: int | None = None
    unreadable: OnUnreadable = "refuse"

    former_names: ClassVar[dict[str, str]] = {"split": "part"}

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
        _check_held_out(self.held_out)
        check_choices(self)
        require_positive(self, "images")


@dataclass(frozen=True)
class Grammar(TextSettings):
    """Sentences drawn from a small grammar with known topic, tense, number and polarity.

    Attributes:
        sentences: The number of sentences.
        split: The training or the test set.
    """

    sentences: int = 10_000
    split: Literal["train", "test"] = "train"

    former_names: ClassVar[dict[str, str]] = {"split": "part"}

    def __post_init__(self) -> None:
        require_positive(self, "sentences")
        check_choices(self)


@dataclass(frozen=True)
class PennTreebank(TextSettings):
    """Mikolov's version of Penn Treebank, one sentence per line.

    Attributes:
        split: The split as published.
    """

    split: Literal["train", "valid", "test"] = "train"

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True)
class TextFile(TextSettings):
    """Your text: UTF-8, one sentence per line, words separated by white space.

    A folder of Hugging Face's `datasets` also works. If it has a test split, that is the test set
    and `held_out` is ignored.

    Attributes:
        path: The file, or the folder; `folder:column` selects one of several columns.
        held_out: The fraction of sentences in the test set, a fixed random choice.
        split: The training or the test set.
        vocabulary_size: The number of most frequent words to know. None takes all words.
        lower: Convert the text to lower case.
        max_words: The length of the longest sentence to keep. None raises an error for more
            than 500 words.
        subwords: The size of a learned subword vocabulary, used instead of whole words.
    """

    path: str
    held_out: float = 0.1
    split: Literal["train", "test"] = "train"
    vocabulary_size: int | None = None
    lower: bool = False
    max_words: int | None = None
    subwords: int | None = None

    former_names: ClassVar[dict[str, str]] = {
        "split": "part",
        "vocabulary_size": "words",
        "max_words": "longest",
        "subwords": "pieces",
    }

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a text file")
        require_positive(self, "subwords", "vocabulary_size", "max_words")
        require(
            self.subwords is None or self.vocabulary_size is None,
            "set either vocabulary_size or subwords, not both",
        )
        _check_held_out(self.held_out)
        check_choices(self)


@dataclass(frozen=True)
class SmallTalk(DialogSettings):
    """Dialogs drawn from a small grammar with known topics and dialog acts.

    Attributes:
        dialogs: The number of dialogs.
        split: The training or the test set.
        window: The number of utterances in a context, at most.
    """

    dialogs: int = 2_000
    split: Literal["train", "test"] = "train"
    window: int = 4

    former_names: ClassVar[dict[str, str]] = {"split": "part"}

    def __post_init__(self) -> None:
        check_choices(self)
        require_positive(self, "dialogs", "window")


@dataclass(frozen=True)
class Switchboard(DialogSettings):
    """Telephone conversations with topics and dialog acts, as published by Zhao et al. 2017.

    Attributes:
        split: The split as published.
        vocabulary_size: The number of most frequent words to know. None takes all words.
        window: The number of utterances in a context, at most.
        max_words: The number of words to which an utterance is cut. None keeps all.
        join_acts: Join what a speaker says without a break, if the training dialogs are cut into
            dialog acts.
    """

    split: Literal["train", "valid", "test"] = "train"
    vocabulary_size: int | None = 10_000
    window: int = 9
    max_words: int | None = 38
    join_acts: bool = False

    former_names: ClassVar[dict[str, str]] = {"vocabulary_size": "words", "max_words": "longest"}

    def __post_init__(self) -> None:
        check_choices(self)
        require_positive(self, "vocabulary_size", "window", "max_words")


@dataclass(frozen=True)
class DialogFile(DialogSettings):
    """Your dialogs: one JSON object per line with `utts` = [[speaker, text, [act]], ...].

    Attributes:
        path: The file, plain or compressed with gzip.
        held_out: The fraction of dialogs in the test set, a fixed random choice.
        split: The training or the test set.
        vocabulary_size: The number of most frequent words to know. None takes all words.
        window: The number of utterances in a context, at most.
        max_words: The number of words to which an utterance is cut. None keeps all.
    """

    path: str
    held_out: float = 0.1
    split: Literal["train", "test"] = "train"
    vocabulary_size: int | None = 10_000
    window: int = 9
    max_words: int | None = 38

    former_names: ClassVar[dict[str, str]] = {
        "split": "part",
        "vocabulary_size": "words",
        "max_words": "longest",
    }

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a file of dialogs")
        _check_held_out(self.held_out)
        check_choices(self)
        require_positive(self, "vocabulary_size", "window", "max_words")


def _check_fit(fit: Fit) -> None:
    is_valid = fit in ("crop", "stretch") or (isinstance(fit, int) and fit > 0)
    require(is_valid, f"fit must be crop, stretch or a number of pixels, got {fit!r}")


def _check_held_out(fraction: float) -> None:
    require(0 <= fraction < 1, f"held_out must lie in [0, 1), got {fraction}")
