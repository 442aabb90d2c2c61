"""Start of several processes on this machine through torch's elastic launcher."""

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controlvae.errors import Interrupted, RunError, UserError
from controlvae.lab.ranks.group import LAUNCHED_VARIABLE, UNKNOWN_LOSS, under_torchrun

_MAX_PROCESSES = 1_024  # of one machine; a typing error must not fill its process table
_RESUME = "resume.txt"  # command that continues the run, in the folder of the failures


def should_launch(devices: int | None) -> bool:
    """Return whether this process has to start others, instead of being one of several.

    Args:
        devices: Number of processes that the user asks for, or None.

    Raises:
        UserError: If the number is not usable here.
    """
    if devices is None:
        return False
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise UserError(f"devices must be a whole number of at least 1, got {devices!r}")
    if devices > _MAX_PROCESSES:
        raise UserError(f"devices must be at most {_MAX_PROCESSES:,}, got {devices}")
    if under_torchrun():
        size = int(os.environ["WORLD_SIZE"])
        if devices != size:
            raise UserError(
                f"devices={devices}, but torchrun started {size} processes; leave devices out"
            )
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise UserError(
                "devices= starts processes that import this script; put the call below "
                "if __name__ == '__main__':"
            )
        return False
    return devices > 1


def launch_command(arguments: Sequence[str], devices: int) -> None:
    """Run a command of `controlvae` on several processes and wait for them.

    Args:
        arguments: Command line, without the name of the program.
        devices: Number of processes.

    Raises:
        UserError: If the ranks failed with one.
        RunError: If training failed, or a rank ended without a word.
        Interrupted: After Ctrl-C or SIGTERM. The run is saved.
    """
    _launch(sys.executable, ["-m", "controlvae", *arguments], devices)


def launch_function(function: Callable[..., Any], arguments: dict[str, Any], devices: int) -> Any:
    """Call a function on several processes, and return what it returns on rank 0.

    Args:
        function: Function of a module.
        arguments: Its arguments by name. They are sent to the other processes.
        devices: Number of processes.

    Raises:
        UserError: If an argument cannot be sent, or the ranks failed with one.
        RunError: If training failed, or a rank ended without a word.
        Interrupted: After Ctrl-C or SIGTERM. The run is saved.
    """
    try:
        return _launch(_call, [function, arguments], devices)[0]
    except (AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        if "pickle" not in reason:
            raise
        raise UserError(
            f"devices={devices} sends model and data to other processes, which failed ({reason}); "
            "define classes and functions at the top of a file, or start it with torchrun"
        ) from None


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call what was sent to this process. Errors go to the process that started it."""
    try:
        return function(**arguments)
    except (UserError, RunError, KeyboardInterrupt) as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else 2
        status = 1 if isinstance(error, RunError) else status
        record_failure(str(error), status)
        raise SystemExit(status) from None


def record_failure(message: str, status: int) -> bool:
    """Tell the process that started this one why it fails. Returns False without such a process.

    Args:
        message: Line for the user.
        status: Exit status.
    """
    folder = os.environ.get(LAUNCHED_VARIABLE)
    if not folder or "RANK" not in os.environ:
        return False
    content = json.dumps({"message": message, "status": status})
    Path(folder, f"rank-{os.environ['RANK']}.json").write_text(content)
    return True


def record_resume(command: str) -> None:
    """Tell the process that started this one how the run is resumed if this one is killed."""
    folder = os.environ.get(LAUNCHED_VARIABLE)
    if folder:
        Path(folder, _RESUME).write_text(command)


def _launch(entrypoint: Any, arguments: list[Any], devices: int) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its tables about failed children say less than the ranks themselves.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="controlvae-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
            start_method="spawn",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        before = dict(os.environ)
        os.environ[LAUNCHED_VARIABLE] = folder
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // devices)))
        try:
            return elastic_launch(config, entrypoint)(*arguments)
        except ChildFailedError as error:
            raise_failure(Path(folder), error.failures)
        except SignalException as error:
            message = _read_failures(Path(folder)).get(0, {}).get("message", "")
            raise Interrupted(
                message or f"stopped by {signal.Signals(error.sigval).name}"
            ) from None
        finally:
            os.environ.clear()
            os.environ.update(before)


def _read_failures(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the messages and exit statuses that ranks left, by rank."""
    return {
        int(file.stem.removeprefix("rank-")): json.loads(file.read_text())
        for file in sorted(folder.glob("rank-*.json"))
    }


def raise_failure(folder: Path, failures: dict[int, Any]) -> None:
    """Raise the error of rank 0, or of the first rank that said something.

    Args:
        folder: Folder of the messages.
        failures: torch's account of the ranks that failed first.

    Raises:
        UserError: If the rank failed with one, and so on for the other kinds.
    """
    found = _read_failures(folder)
    killed = [
        f"rank {rank} was killed by {failure.signal_name()}"
        for rank, failure in sorted(failures.items())
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    ]
    unknown: dict[str, Any] = {"message": UNKNOWN_LOSS, "status": 1}
    first = found[min(found)] if found else unknown
    message: str = first["message"]
    if message.startswith(UNKNOWN_LOSS):
        what = killed[0] if killed else f"rank {min(failures)} ended without a message"
        rest = message.removeprefix(UNKNOWN_LOSS)
        resume = folder / _RESUME
        if not rest and resume.is_file():  # of rank 0, which could not say so itself
            rest = f"; continue with: {resume.read_text()}"
        message = what + rest
    match first["status"]:
        case 2:
            raise UserError(message)
        case 130:
            raise Interrupted(message)
    raise RunError(message)
