"""State files of the integrations: written atomically, and read with errors that name the file."""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlvae.controller import Controller
from controlvae.errors import UserError

_MAX_BYTES = 1 << 20  # a state has some fifty numbers


def write_state(path: Path, control: Controller) -> None:
    """Write the state of a controller as JSON, atomically.

    A kill at any moment leaves the whole file, or the one that was there before.
    """
    state = {name: float(value) for name, value in control.state_dict().items()}
    temporary = path.with_name(f".part-{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_state(path: Path, control: Controller) -> None:
    """Restore the state of a controller from a file that `write_state` has written.

    Raises:
        UserError: If the file is torn, or does not hold the state of this controller's law. The
            controller is then as before.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("it is larger than any state")
        saved: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is torn or damaged ({error}); resume from an earlier checkpoint"
        ) from None
    if not isinstance(saved, Mapping):
        raise UserError(f"{path} must hold the state of a controller, got {saved!r:.80}")
    try:
        control.load_state_dict(saved)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
