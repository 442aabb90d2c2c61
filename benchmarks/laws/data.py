"""Small data sets of the plants, kept in one file of arrays.

`prepare_data` reads the sources once and writes `plants.npz`, about 5 MB. A machine without the
sources or without scikit-learn needs that file alone.
"""

import os
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# `data/` of the repository is not committed.
FOLDER = Path(__file__).parents[2] / "data" / "laws"
WORDS, LENGTH = 200, 8  # of the sentences of Penn Treebank
PAD, START, UNKNOWN = 0, 1, 2


def data_file() -> Path:
    """Return the path of the arrays, in the folder CONTROLVAE_LAWS_DATA if it is set."""
    return Path(os.environ.get("CONTROLVAE_LAWS_DATA", FOLDER)) / "plants.npz"


@cache
def load_array(name: str) -> Tensor:
    """Load one array by name; the first call on a machine prepares the file.

    Raises:
        FileNotFoundError: If the file is absent and its sources are too.
    """
    if not data_file().is_file():
        try:
            prepare_data(data_file())
        except Exception as error:
            raise FileNotFoundError(
                f"{data_file()} is absent and could not be made ({error}): run `python "
                "benchmarks/laws --prepare-data` where scikit-learn and CONTROLVAE_DATA with "
                "CIFAR-10 and Penn Treebank are at hand, and copy the file"
            ) from error
    with np.load(data_file()) as arrays:
        return torch.from_numpy(arrays[name])


def prepare_data(path: Path) -> None:
    """Write the arrays of all plants to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.npz")
    np.savez_compressed(
        temporary,
        **_read_digits(),
        **_read_tables(),
        shapes=_read_shapes(),
        cifar=_read_cifar(),
        sentences=_read_sentences(),
    )
    temporary.replace(path)


def _read_digits() -> dict[str, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {
        "digits": (digits.data / 16).astype(np.float32),
        "digit_classes": digits.target.astype(np.int64),
    }


def _read_tables() -> dict[str, np.ndarray]:
    """Return the breast cancer table: standardised columns, categories and a binary column."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    values = (table.data - table.data.mean(0)) / table.data.std(0)
    # Quartiles of three columns stand for categorical columns.
    ranks = values[:, 12:15].argsort(0).argsort(0)
    return {
        "table_values": values[:, :12].astype(np.float32),
        "table_categories": (ranks * 4 // len(ranks)).astype(np.int64),
        "table_binary": table.target.astype(np.float32)[:, None],
        "table_counts": np.clip(np.round(table.data[:, 3] / 100), 0, 40).astype(np.float32)[
            :, None
        ],
    }


def _read_shapes() -> np.ndarray:
    """Return 4,000 images of 2D Shapes, (4000, 32, 32) bytes of 0 and 1."""
    from controlvae.lab.config import Shapes2D
    from controlvae.lab.data.registry import load_dataset

    images = load_dataset(Shapes2D(32, images=4_000))
    return images.batch(torch.arange(len(images)))[:, 0].round().byte().numpy()


def _read_cifar() -> np.ndarray:
    """Return 4,000 images of CIFAR-10 at half size, (4000, 16, 16, 3) bytes."""
    from controlvae.lab.config import CIFAR10
    from controlvae.lab.data.registry import load_dataset

    images = load_dataset(CIFAR10(32, images=4_000))
    small = torch.nn.functional.avg_pool2d(images.batch(torch.arange(len(images))), 2)
    return (255 * small).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def _read_sentences() -> np.ndarray:
    """Return Penn Treebank's sentences of 4 to 8 words as word numbers, (n, 8), padded."""
    root = Path(os.environ["CONTROLVAE_DATA"])
    archive = next(path for path in [root / "ptb" / "ptb_mikolov.zip", root / "ptb_mikolov.zip"])
    lines = zipfile.ZipFile(archive).read("ptb.train.txt").decode().splitlines()
    sentences = [words for line in lines if 4 <= len(words := line.split()) <= LENGTH]
    counts = Counter(word for words in sentences for word in words)
    common = [word for word, _ in counts.most_common(WORDS - 3)]
    numbers = {word: number for number, word in enumerate(common, start=3)}
    rows = np.full((len(sentences), LENGTH), PAD, dtype=np.int64)
    for row, words in zip(rows, sentences, strict=True):
        row[: len(words)] = [numbers.get(word, UNKNOWN) for word in words]
    return rows
