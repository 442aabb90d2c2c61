"""Running the command line in tests: in a separate process, or faster in this one."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

# Networks are tiny: a second thread does not help, and is very slow next to a busy process.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words):
    """Return the arguments of a process that runs a command."""
    return [sys.executable, "-m", "controlvae", *map(str, words)]


def controlvae(*words, **options):
    """Run a command in a separate process."""
    return _run(command(*words), options)


@contextlib.contextmanager
def ended_after(step):
    """End training after a number of steps, as a time limit would, with frequent checkpoints.

    A limit in seconds would end it at a different step on every machine.
    """
    from controlvae.lab.training import loop, runner

    ended = []

    def train_runs(runs, engine, **options):
        def stop():
            ended.extend([engine] if engine.step >= step else [])
            return engine.step >= step

        return loop.train_runs(runs, engine, **{**options, "stop": stop})

    with (
        mock.patch.object(runner, "train_runs", train_runs),
        mock.patch.object(loop._CheckpointTimer, "due", return_value=True),
    ):
        yield
    assert ended


_STOP_SCRIPT = """
import sys
from command import ended_after
from controlvae.lab.cli.main import main
with ended_after(int(sys.argv.pop(1))):
    main()
"""


def stopped(step, *words):
    """Run a command in a separate process that stops after a number of steps."""
    line = [sys.executable, "-c", _STOP_SCRIPT, str(step), *map(str, words)]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return _run(line, {"env": {**ONE_THREAD, "PYTHONPATH": path}})


def _run(line, options):
    options = {"env": ONE_THREAD, **options}
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **options)


def within(*words, cwd):
    """Run a command in this process, which saves seconds of imports."""
    from controlvae.lab.cli.main import main

    out, err, interrupt = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGINT)
    try:
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["controlvae", *map(str, words)]),
        ):
            main()
    except SystemExit as error:
        return SimpleNamespace(returncode=error.code, stdout=out.getvalue(), stderr=err.getvalue())
    finally:
        signal.signal(signal.SIGINT, interrupt)
