"""`controlvae`: runs a command; errors become one line and an exit status."""

import os
import signal
import sys
import warnings
from functools import cache
from typing import NoReturn

import typer

from controlvae.errors import RunError, UserError
from controlvae.lab.cli import making, showing  # their commands are the application's
from controlvae.lab.cli.options import app

__all__ = ["app", "main", "making", "showing"]


def main() -> None:
    """Runs a command; errors meant for people are one line on stderr."""
    _yield_cores()
    debug = "--debug" in sys.argv
    said = cache(lambda line: print(line, file=sys.stderr))  # each once, whoever warns
    warnings.showwarning = lambda message, *_: said(f"controlvae: {message}".splitlines()[0])
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        # Outside its stand-alone mode the app returns the status of a typer.Exit instead of raising it.
        _leave(app(standalone_mode=False) or 0)
    except (UserError, RunError) as error:
        if debug:
            raise
        print(f"controlvae: {error}", file=sys.stderr)
        _leave(2 if isinstance(error, UserError) else 1)
    except (KeyboardInterrupt, typer.Abort):
        _leave(130)
    except PermissionError as error:
        if debug:
            raise
        print(f"controlvae: {error.filename}: {error.strerror}", file=sys.stderr)
        _leave(2)
    except Exception as error:
        if _out_of_memory(error) and not debug:
            print(
                "controlvae: out of memory; a smaller training.batch, or for text data.longest, takes less",
                file=sys.stderr,
            )
            _leave(1)
        usage = _usage_error(error)
        if usage is None or debug:
            raise
        if usage:
            print(f"controlvae: {usage}", file=sys.stderr)
        _leave(2 if usage else 0)


def _yield_cores() -> None:
    """Threads that wait for each other let go of their core after a fraction of a millisecond, not after several.

    A core that spins is one that another process cannot have, which may be what the threads are waiting for: beside two
    busy processes on two cores training is 1.6 to 2 times as fast so, and alone as fast. GNU's OpenMP, which torch has
    on Linux, reads this once, so it is set before torch is imported. Whoever has set a policy keeps it.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"


def _leave(status: int) -> NoReturn:
    """Ends the process; another Ctrl-C must not land in the middle of the interpreter's clearing up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _out_of_memory(error: Exception) -> bool:
    """By its words: torch has a class of its own for a GPU's alone."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        "out of memory" in said or "can't allocate memory" in said
    )


def _usage_error(error: Exception) -> str | None:
    """What the argument parser objects to, in one line; nothing where it only showed help; None for other errors."""
    show = getattr(error, "format_message", None)
    if not callable(show):
        return None
    message, context = str(show()), getattr(error, "ctx", None)
    command = context.info_name if context is not None and context.parent is not None else ""
    return (
        f"{message} (see controlvae {command}{' ' if command else ''}--help)"
        if message.strip()
        else ""
    )


if __name__ == "__main__":
    main()
