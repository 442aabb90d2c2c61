"""Commands of `controlvae`. Importing this package registers all of them."""

import importlib

from controlvae.lab.cli.options import app

_MODULES = (
    "presets",
    "train",
    "cluster",
    "bench",
    "tune",
    "curve",
    "search",
    "reproduce",
    "evaluate",
)
for _name in (*_MODULES, "dashboard", "media", "chat"):  # the order in `--help`
    importlib.import_module(f"controlvae.lab.cli.commands.{_name}")

__all__ = ["app"]
