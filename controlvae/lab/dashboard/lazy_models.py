"""Views of models and tables of metrics, imported when a page first asks for them.

They need the plots and the metrics, which take as long to import as everything else together. The
list and the curves do not wait for them.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from controlvae.lab.runs.folder import RunFolder

_PACKAGE = "controlvae.lab.dashboard"


class LazyModels:
    """Models of the runs, loaded when a view needs them.

    Args:
        data_root: Folder in which data files are searched first.
        device: Device of the models.
    """

    def __init__(self, data_root: Path | None, device: torch.device) -> None:
        self.data_root, self.device = data_root, device
        self._cache: Any = None
        self._lock = Lock()

    def call(self, view: str, folder: RunFolder, *args: Any) -> Any:
        """Call a function of `model_views` with the model of a run.

        Args:
            view: Name of the function.
            folder: The run.
            *args: Further arguments of the function.
        """
        views = importlib.import_module(f"{_PACKAGE}.model_views")
        with self._lock:
            self._cache = self._cache or views.ModelCache(self.data_root, self.device)
        return getattr(views, view)(self._cache.load(folder), *args)

    def compare(self, kind: str, folders: Sequence[RunFolder]) -> Any:
        """Return the table of the settings or of the metrics of runs."""
        tables = importlib.import_module(f"{_PACKAGE}.tables")
        return getattr(tables, f"compare_{kind}")(folders)
