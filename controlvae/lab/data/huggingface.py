"""Data sets as Hugging Face's `datasets` keeps them: what `save_to_disk` wrote, or parquet files as its Hub has them.

Needs that package: `pip install 'controlvae[datasets]'`. Nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.data.images.decoding import Encoded

NEEDS = "a folder of Hugging Face's datasets (save_to_disk, or parquet files)"
# data/train-00000-of-00001.parquet, or plain_text/train/0000.parquet
_PARQUET = ("*.parquet", "*/*.parquet", "*/*/*.parquet")
_TESTED = ("test", "validation")  # what a model is tested with, the first that is there
_SAVED = (("dataset_dict.json",), ("dataset_info.json", "state.json"))  # several splits, or one


def is_copy(path: Path) -> bool:
    """Whether a folder is one, by the names of its files: it can be asked without the package."""
    return path.is_dir() and (
        _is_saved(path) or any(True for pattern in _PARQUET for _ in path.glob(pattern))
    )


def files(path: Path) -> list[Path]:
    """What a copy is made of, for a fingerprint of it."""
    return sorted(file for kind in ("*.arrow", "*.parquet") for file in path.rglob(kind))


@dataclass(frozen=True)
class Split:
    """One split of a data set."""

    where: Path  # its name, for people and for caches
    rows: Any  # a `datasets.Dataset`

    def pictures(self, column: str | None = None) -> Encoded:
        """The pictures of a column, as the files they are stored as."""
        from datasets import Image

        named = self._column("pictures", column, lambda feature: isinstance(feature, Image))
        stored = self.rows.select_columns(named).cast_column(named, Image(decode=False))

        def read(index: int) -> bytes:
            file = stored[index][named]
            return file["bytes"] or Path(file["path"]).read_bytes()

        return Encoded(self.where, [str(index) for index in range(len(stored))], read)

    def text(self, column: str | None = None) -> str:
        """The rows of a column, a line each."""
        strings = ("string", "large_string")
        named = self._column(
            "text", column, lambda feature: getattr(feature, "dtype", None) in strings
        )
        return "\n".join(" ".join((row or "").splitlines()) for row in self.rows[named])

    def _column(self, kind: str, wanted: str | None, fits: Callable[[Any], bool]) -> str:
        there = ", ".join(self.rows.column_names)
        fitting = [name for name, feature in self.rows.features.items() if fits(feature)]
        if wanted is not None and wanted not in fitting:
            raise UserError(
                f"{self.where} has no column {wanted!r} of {kind}; its columns are {there}"
            )
        if wanted is None and not fitting:
            raise UserError(f"{self.where} has no column of {kind}; its columns are {there}")
        if wanted is None and len(fitting) > 1:
            ways = ", ".join(f"path:{name}" for name in fitting)
            raise UserError(f"{self.where} has {len(fitting)} columns of {kind}; name one: {ways}")
        return wanted or fitting[0]


@dataclass(frozen=True)
class Copy:
    """A data set on disk."""

    path: Path
    splits: dict[str, Any]

    @property
    def parted(self) -> bool:
        """Whether it brings a training part of its own, and one to test with."""
        return "train" in self.splits and any(name in self.splits for name in _TESTED)

    def split(self, name: str) -> Split:
        """A split by its name; `test` is the validation part where there is no other."""
        if name == "test":
            name = next((held for held in _TESTED if held in self.splits), name)
        if name not in self.splits:
            raise UserError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        return Split(self.path if len(self.splits) == 1 else self.path / name, self.splits[name])

    def whole(self) -> Split:
        """What is to be divided where there is no test part."""
        return self.split(next(iter(self.splits)) if len(self.splits) == 1 else "train")


def open_copy(path: Path) -> Copy:
    """The data set in a folder that `is_copy`; of one with several configurations, the folder of a configuration."""
    try:
        from datasets import DatasetDict, load_dataset, load_from_disk
    except ImportError:
        raise UserError(
            f"{path} needs the datasets package: pip install 'controlvae[datasets]'"
        ) from None
    try:
        found = load_from_disk(str(path)) if _is_saved(path) else load_dataset(str(path))
    except Exception as error:  # of the file system, of Arrow, of a damaged description
        raise UserError(
            f"{path} cannot be read by datasets: {' '.join(str(error).split()) or repr(error)}"
        ) from None
    return Copy(
        path,
        dict(found) if isinstance(found, DatasetDict) else {str(found.split or "train"): found},
    )


def _is_saved(path: Path) -> bool:
    return any(all((path / name).is_file() for name in names) for names in _SAVED)
