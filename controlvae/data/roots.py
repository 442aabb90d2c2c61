"""Where data files are looked for: `--data-root`, `$CONTROLVAE_DATA`, then `./data`."""

import os
from pathlib import Path

from controlvae.errors import UserError


def data_roots(given: Path | None = None) -> list[Path]:
    """The folders to look in, in order. A folder that was asked for by name must be there."""
    if given is not None and not given.is_dir():
        raise UserError(f"--data-root {given} is not a folder")
    from_environment = os.environ.get("CONTROLVAE_DATA")
    roots = [given, Path(from_environment) if from_environment else None, Path("data")]
    return [root for root in roots if root is not None]


def find_file(names: list[str], given: Path | None = None) -> Path | None:
    """The first of these relative paths that exists in a data folder."""
    for root in data_roots(given):
        for name in names:
            if (root / name).is_file():
                return root / name
    return None
