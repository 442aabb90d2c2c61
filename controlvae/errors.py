"""Exceptions with one-line messages that say what to do.

The command line prints them without a traceback.
"""

import difflib
import shlex
from collections.abc import Iterable

_MAX_NAMES_SHOWN = 15  # in an error message
_MAX_NAME_LETTERS = 80
_MAX_LETTERS = 2_000  # of a message


class UserError(Exception):
    """Wrong name, value or file, or missing data. Exit status 2."""

    def __str__(self) -> str:
        text = super().__str__()
        # A message may quote what was typed, which may be a whole file.
        return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}..."


class FactorsError(UserError):
    """Missing or unreadable table of factors for images that are available."""


class RunError(Exception):
    """Training failed although the request was valid. Exit status 1."""


class Diverged(RunError):
    """Loss of a model became NaN or infinite. Other runs of the same command still train."""


class ControlWarning(UserWarning):
    """Warning about a control loop that does not work: its message says what to do."""


class ControlError(RuntimeError):
    """A weight ran away: it grew a millionfold while the measurement moved away from its target."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped the work after its state was saved. Exit status 130."""


def shell_command(command: str, *arguments: object) -> str:
    """Return a quoted command line, such as `controlvae resume 'my runs/first'`."""
    return shlex.join(["controlvae", command, *map(str, arguments)])


def unknown_name_error(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return an error such as `no preset 'shaps2d'; did you mean 'shapes2d-vae'?`.

    Args:
        kind: Kind of thing that was named, such as "preset".
        name: Name that was received.
        known: Valid names.
    """
    names = list(known)
    name = name if len(name) <= _MAX_NAME_LETTERS else f"{name[:_MAX_NAME_LETTERS]}..."
    close = _closest_names(name, names)
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {shown}{more}"
    return UserError(f"no {kind} {name!r}; {hint}")


def _closest_names(name: str, names: list[str]) -> list[str]:
    """Return the known name that is closest to a name, or the two that are equally close."""
    close = difflib.get_close_matches(name, names, n=2)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in close]
    return close if len(set(ratios)) == 1 else close[:1]


def is_out_of_memory(error: Exception) -> bool:
    """Detect out-of-memory from the message. torch has a dedicated exception only for CUDA."""
    message = str(error).lower()
    texts = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(text in message for text in texts)
