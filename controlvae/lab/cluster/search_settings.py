"""Settings of a search, and its folder: created once, and joined by searches that are the same."""

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from controlvae import __version__
from controlvae.errors import UserError
from controlvae.lab.cluster.search_space import Dimension
from controlvae.lab.config import Experiment, changed_fields, from_dict, to_dict
from controlvae.lab.io import PART, writing

SETTINGS_FILE, JOURNAL_FILE, WORKERS_FOLDER = "search.json", "study.journal", "workers"
_FORMAT = 1
_LABELS = ("name", "about", "paper")  # of an experiment, which do not affect a trial

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class SearchSettings:
    """Settings that all workers of a search share.

    Attributes:
        source: Name of the preset, or the place of the user's code.
        experiment: Experiment whose settings are varied.
        space: Dimensions of the search space by setting.
        objective: Name of the objective.
        better: Direction of the objective.
        prune: Column of the validation curve by which trials are pruned, or "none".
        fid: Images for FID and KID, if the objective needs them.
        seed: Seed of the sampler.
    """

    source: str
    experiment: Experiment
    space: dict[str, Dimension]
    objective: str
    better: Better
    prune: str
    fid: int | None = None
    seed: int = 0

    def as_data(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {
            "format": _FORMAT,
            "controlvae": __version__,
            "source": self.source,
            "objective": self.objective,
            "better": self.better,
            "prune": self.prune,
            "fid": self.fid,
            "seed": self.seed,
            "vary": {path: str(dimension) for path, dimension in self.space.items()},
            "experiment": to_dict(self.experiment),
        }


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a search's settings file.

    Args:
        path: Folder of the search.

    Raises:
        UserError: If there is none, or it is corrupt or of a later version.
    """
    file = path / SETTINGS_FILE
    if not file.is_file():
        raise UserError(f"{path} holds no search; start one with: controlvae search")
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] > _FORMAT:
            raise UserError(
                f"{file} was written by a later controlvae; pip install --upgrade controlvae"
            )
        data["vary"], data["experiment"], data["objective"], data["better"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is corrupt ({error!r}); choose another --run") from None
    return data


def create_folder(path: Path, settings: SearchSettings) -> None:
    """Create the folder of a search, or check that it holds the same search.

    Args:
        path: Folder of the search.
        settings: Settings of the search.

    Raises:
        UserError: If the folder holds something else.
    """
    file = path / SETTINGS_FILE
    if not file.is_file():
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; choose another --run")
        if path.is_dir() and any(not each.name.startswith(PART) for each in path.iterdir()):
            # Another worker may have created it just now.
            if not file.is_file():
                raise UserError(f"{path} is not empty and holds no search; choose another --run")
        else:
            _create_exclusively(file, settings)
    differences = list(_differences(read_settings(path), settings))
    if differences:
        raise UserError(
            f"{path} holds another search: {'; '.join(differences)}. Choose another --run"
        )
    if not (path / JOURNAL_FILE).exists() and any(path.glob("trial-*")):
        raise UserError(f"{path / JOURNAL_FILE} is gone; restore it, or choose another --run")


def _create_exclusively(file: Path, settings: SearchSettings) -> None:
    """Write the settings unless another worker has done so. Readers never see half a file."""
    whole = file.with_name(f"{PART}{uuid.uuid4().hex[:8]}-settings")
    with writing(whole) as temporary:
        text = json.dumps(settings.as_data(), indent=2, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    try:
        os.link(whole, file)  # fails if the name is taken, on network file systems too
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        whole.rename(file)
    with contextlib.suppress(OSError):
        whole.unlink()


def _differences(there: Mapping[str, Any], here: SearchSettings) -> list[str]:
    """Describe in which settings two searches differ."""
    own, lines = here.as_data(), []
    for key in ("source", "objective", "better", "prune", "fid", "seed"):
        if there.get(key) != own[key]:
            lines.append(f"{key} is {there.get(key)} there and {own[key]} here")
    for path in dict.fromkeys([*there["vary"], *own["vary"]]):
        values = [part["vary"].get(path, "not varied") for part in (there, own)]
        if values[0] != values[1]:
            lines.append(f"{path} is {values[0]} there and {values[1]} here")
    first = from_dict(Experiment, there["experiment"])
    for path in changed_fields(first, here.experiment):
        if path not in _LABELS:
            lines.append(
                f"{path} is {_look_up(first, path)} there and "
                f"{_look_up(here.experiment, path)} here"
            )
    return lines


def _look_up(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value
