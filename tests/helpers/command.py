"""The command line as a user runs it: in a process of its own; or, sooner, in this one."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

# Tiny networks: a second thread gains nothing, and beside another busy process it costs a hundredfold.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words):
    return [sys.executable, "-m", "controlvae", *map(str, words)]


def controlvae(*words, **options):
    return _ended(command(*words), options)


@contextlib.contextmanager
def ended_after(step):
    """Training ends after so many steps as a time limit would end it, with a checkpoint after every few of them.

    A limit in seconds ends it at another step on every machine, and on a slow one before there is any to speak of.
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


_STOPPING = """
import sys
from command import ended_after
from controlvae.lab.cli.main import main
with ended_after(int(sys.argv.pop(1))):
    main()
"""


def stopped(step, *words):
    """The command in a process of its own, whose run equals to the bit those of others that have theirs."""
    line = [sys.executable, "-c", _STOPPING, str(step), *map(str, words)]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return _ended(line, {"env": {**ONE_THREAD, "PYTHONPATH": path}})


def _ended(line, options):
    options = {"env": ONE_THREAD, **options}
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **options)


def within(*words, cwd):
    """The same without a process of its own, whose imports take seconds: for all but kills and Ctrl-C."""
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
    except SystemExit as left:
        return SimpleNamespace(returncode=left.code, stdout=out.getvalue(), stderr=err.getvalue())
    finally:
        signal.signal(signal.SIGINT, interrupt)
