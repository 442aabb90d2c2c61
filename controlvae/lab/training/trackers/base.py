"""Interface of a logger, and helpers that the loggers share."""

import importlib.util
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from controlvae.errors import UserError
from controlvae.lab.io import write_json
from controlvae.lab.reading import parse_json, read_text
from controlvae.lab.runs.folder import RunFolder

_RUN_IDS_FILE = "trackers.json"


@runtime_checkable
class Tracker(Protocol):
    """Destination of the log records of one run."""

    def write(self, record: dict[str, Any]) -> None:
        """Write one log record: a `step`, numbers, and a list `kl_per_latent`."""

    def close(self) -> None:
        """Write what is left and close."""


TrackerFactory = Callable[[RunFolder], Tracker]


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a log record by name, without its step.

    Lists become one number per entry: `kl_per_latent/1`, `kl_per_latent/2` and so on.
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list | tuple):
            found.update({f"{name}/{n}": float(each) for n, each in enumerate(value, start=1)})
        elif isinstance(value, int | float) and name != "step":
            found[name] = float(value)
    return found


def flat_settings(folder: RunFolder) -> dict[str, Any]:
    """Return every setting of a run by its dotted name, such as `control.target`."""
    flat: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                add(f"{name}.{key}" if name else str(key), inner)
        else:
            flat[name] = value

    add("", folder.manifest().get("experiment", {}))
    return flat


def display_name(folder: RunFolder) -> str:
    """Return a short name of a run: the last two parts of its path."""
    return "/".join(folder.path.absolute().parts[-2:])


def last_step(folder: RunFolder) -> int:
    """Return the step of the last log record, or 0. A resumed run continues after it."""
    last = folder.last_record()
    return int(last["step"]) if last else 0


def read_run_id(folder: RunFolder, service: str) -> str | None:
    """Return the id under which a service knows the run, or None if it is new to it."""
    run_id = _read_run_ids(folder).get(service)
    return run_id if isinstance(run_id, str) else None


def write_run_id(folder: RunFolder, service: str, run_id: str) -> None:
    """Save the id under which a service knows the run.

    Args:
        folder: Run folder.
        service: Name of the service, such as "wandb".
        run_id: Id of the run.
    """
    write_json(folder.path / _RUN_IDS_FILE, {**_read_run_ids(folder), service: run_id})


def new_run_id() -> str:
    """Return a random id of 16 characters."""
    return secrets.token_hex(8)


def require_package(logger: str, *packages: str, extra: str = "trackers") -> None:
    """Raise UserError if a package of a logger is not installed.

    Args:
        logger: Name of the logger, for the message.
        packages: Names under which the packages are imported.
        extra: Extra of controlvae that brings them.
    """
    for name in packages:
        spec = importlib.util.find_spec(name)
        # Without an origin it is a folder of this name, such as the `wandb` that runs leave behind.
        if spec is None or spec.origin is None:
            raise UserError(f"logger {logger} needs {name}: pip install 'controlvae[{extra}]'")


def _read_run_ids(folder: RunFolder) -> dict[str, Any]:
    try:
        ids = parse_json(read_text(folder.path / _RUN_IDS_FILE))
    except (OSError, ValueError):  # a new run, or a corrupt file: the service starts another run
        return {}
    return ids if isinstance(ids, dict) else {}
