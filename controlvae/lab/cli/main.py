"""Entry point of `controlvae`: runs a command. Errors are one line and an exit status."""

import errno
import os
import signal
import sys
import warnings
from functools import cache
from typing import Any, NoReturn

from controlvae.errors import RunError, UserError, is_out_of_memory
from controlvae.lab.reading import shorten

_LAB_PACKAGES = ("typer", "click", "rich", "safetensors", "matplotlib", "PIL", "jinja2")
# Of a path that the user named and no file of ours can be at.
_PATH_ERRORS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ENODEV),
}


def main() -> None:
    """Run a command. Exit with 0, 1 (run failed), 2 (wrong input) or 130 (Ctrl-C)."""
    _shorten_spinning()
    debug = "--debug" in sys.argv
    if "--trust-code" in sys.argv:
        os.environ["CONTROLVAE_TRUST_CODE"] = "1"
    sys.argv = [word for word in sys.argv if word not in ("--debug", "--trust-code")]
    try:
        _exit(_run_command())
    except KeyboardInterrupt as error:
        _report(str(error), 130, shown=False)
        _exit(130)
    except Exception as error:
        result = _describe_error(error)
        if result is None or debug:
            raise
        status, message = result
        if message:
            _report(message, status)
        _exit(status)


def _report(message: str, status: int, shown: bool = True) -> None:
    """Print an error, or leave it to the process that started this one as one of several ranks.

    Args:
        message: Line for the user.
        status: Exit status.
        shown: Print the line. False if it has been printed already.
    """
    if "CONTROLVAE_LAUNCHED" in os.environ:
        from controlvae.lab.ranks.launch import record_failure

        if record_failure(message, status):
            return
    if shown and os.environ.get("RANK", "0") == "0":
        print(f"controlvae: {message}", file=sys.stderr)


def _run_command() -> int:
    from controlvae.lab.cli.commands import app

    _show_warnings_as_lines()
    # Outside its standalone mode, typer returns the status of an Exit instead of raising it.
    status: int | None = app(standalone_mode=False)
    return status or 0


def _describe_error(error: Exception) -> tuple[int, str] | None:
    """Return exit status and message of an expected error, or None for a bug."""
    if isinstance(error, UserError | RunError):
        return (2 if isinstance(error, UserError) else 1), str(error)
    package = str(getattr(error, "name", "")).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in _LAB_PACKAGES:
        return 2, f"the command line needs {package}: pip install 'controlvae[lab]'"
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS:
        return 2, f"{shorten(error.filename)}: {error.strerror}"
    if is_out_of_memory(error):
        return 1, "out of memory; try a smaller training.batch, or data.longest for text"
    if type(error).__name__ == "Abort":  # typer's own, after Ctrl-C in a prompt
        return 130, ""
    return _describe_usage_error(error)


def _describe_usage_error(error: Exception) -> tuple[int, str] | None:
    """Return the message of the argument parser, which is empty if it only printed help."""
    format_message = getattr(error, "format_message", None)
    if not callable(format_message):
        return None
    message, context = str(format_message()), getattr(error, "ctx", None)
    if not message.strip():
        return 0, ""
    command = context.info_name if context is not None and context.parent is not None else None
    return 2, f"{message} (see {' '.join(filter(None, ['controlvae', command, '--help']))})"


def _show_warnings_as_lines() -> None:
    """Print each warning once, as one line without its source.

    A run without its data is no problem for some commands, and an error in the others.
    """
    if os.environ.get("RANK", "0") != "0":  # one of several ranks
        warnings.showwarning = lambda *_, **__: None
        return
    print_once = cache(lambda line: print(line, file=sys.stderr))

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if category.__name__ != "MissingDataWarning":
            print_once(f"controlvae: {message}".splitlines()[0])

    warnings.showwarning = show


def _shorten_spinning() -> None:
    """Let waiting OpenMP threads release their core after a fraction of a millisecond.

    A spinning core is one that another process cannot use, perhaps the one the threads wait for.
    With two other busy processes on two cores, training is 1.6 to 2 times as fast, and alone as
    fast. GNU OpenMP, which torch uses on Linux, reads the variable once, so it is set before torch
    is imported. A policy set by the user is kept.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"


def _exit(status: int) -> NoReturn:
    """Exit, and ignore further Ctrl-C while the interpreter cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        # Threads of torch.distributed may abort an interpreter that is being torn down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
