"""Data sets in the formats of Hugging Face's `datasets`: `save_to_disk` folders and parquet files.

Needs that package: `pip install 'controlvae[datasets]'`. Nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.data.images.decoding import EncodedImages
from controlvae.lab.reading import MAX_IMAGE_BYTES, read_bytes

NEEDS = "a folder of Hugging Face's datasets (save_to_disk, or parquet files)"
# data/train-00000-of-00001.parquet, or plain_text/train/0000.parquet
_PARQUET_PATTERNS = ("*.parquet", "*/*.parquet", "*/*/*.parquet")
_TEST_SPLITS = ("test", "validation")  # the first one that exists is the test set
# Files that `save_to_disk` writes for several splits, and for one.
_SAVED_FILES = (("dataset_dict.json",), ("dataset_info.json", "state.json"))


def is_datasets_folder(path: Path) -> bool:
    """Return whether a folder is a data set of `datasets`, judging by its file names.

    The package itself is not needed.
    """
    return path.is_dir() and (
        _is_saved(path) or any(True for pattern in _PARQUET_PATTERNS for _ in path.glob(pattern))
    )


def arrow_files(path: Path) -> list[Path]:
    """Return the files of a data set, for a fingerprint."""
    return sorted(file for kind in ("*.arrow", "*.parquet") for file in path.rglob(kind))


@dataclass(frozen=True)
class DatasetsSplit:
    """One split of a data set."""

    path: Path  # identifies the split in messages and in the cache
    rows: Any  # a `datasets.Dataset`

    def images(self, column: str | None = None) -> EncodedImages:
        """Return the images of a column as encoded files."""
        from datasets import Image

        name = self._find_column("images", column, lambda feature: isinstance(feature, Image))
        stored = self.rows.select_columns(name).cast_column(name, Image(decode=False))

        def read(index: int) -> bytes:
            file = stored[index][name]
            return file["bytes"] or read_bytes(Path(file["path"]), MAX_IMAGE_BYTES)

        return EncodedImages(self.path, [str(index) for index in range(len(stored))], read)

    def text(self, column: str | None = None) -> str:
        """Return the rows of a column, one per line."""
        strings = ("string", "large_string")
        name = self._find_column(
            "text", column, lambda feature: getattr(feature, "dtype", None) in strings
        )
        return "\n".join(" ".join((row or "").splitlines()) for row in self.rows[name])

    def _find_column(self, kind: str, name: str | None, has_kind: Callable[[Any], bool]) -> str:
        every = ", ".join(self.rows.column_names)
        matching = [column for column, feature in self.rows.features.items() if has_kind(feature)]
        if name is not None and name not in matching:
            raise UserError(
                f"{self.path} has no column {name!r} of {kind}; its columns are {every}"
            )
        if name is None and not matching:
            raise UserError(f"{self.path} has no column of {kind}; its columns are {every}")
        if name is None and len(matching) > 1:
            paths = ", ".join(f"path:{column}" for column in matching)
            raise UserError(f"{self.path} has {len(matching)} columns of {kind}; name one: {paths}")
        return name or matching[0]


@dataclass(frozen=True)
class DatasetsFolder:
    """A data set on disk."""

    path: Path
    splits: dict[str, Any]

    @property
    def has_test_split(self) -> bool:
        """True if the data set has a training split and one to test on."""
        return "train" in self.splits and any(name in self.splits for name in _TEST_SPLITS)

    def split(self, name: str) -> DatasetsSplit:
        """Return a split by name. "test" is the validation split if there is no test split."""
        if name == "test":
            name = next((each for each in _TEST_SPLITS if each in self.splits), name)
        if name not in self.splits:
            raise UserError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        path = self.path if len(self.splits) == 1 else self.path / name
        return DatasetsSplit(path, self.splits[name])

    def undivided(self) -> DatasetsSplit:
        """Return the split to divide if there is no test split."""
        return self.split(next(iter(self.splits)) if len(self.splits) == 1 else "train")


def open_datasets_folder(path: Path) -> DatasetsFolder:
    """Open the data set in a folder.

    Args:
        path: A folder for which `is_datasets_folder` is true. For a data set with several
            configurations, the folder of one configuration.

    Raises:
        UserError: The package is missing or cannot read the folder.
    """
    try:
        from datasets import DatasetDict, load_dataset, load_from_disk
    except ImportError:
        raise UserError(
            f"{path} needs the datasets package: pip install 'controlvae[datasets]'"
        ) from None
    try:
        content = load_from_disk(str(path)) if _is_saved(path) else load_dataset(str(path))
    except Exception as error:  # from the file system, Arrow, or a corrupt description
        reason = " ".join(str(error).split()) or repr(error)
        raise UserError(f"{path} cannot be read by datasets: {reason}") from None
    if isinstance(content, DatasetDict):
        return DatasetsFolder(path, dict(content))
    return DatasetsFolder(path, {str(content.split or "train"): content})


def _is_saved(path: Path) -> bool:
    return any(all((path / name).is_file() for name in names) for names in _SAVED_FILES)
