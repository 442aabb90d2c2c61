"""The command line as a user runs it: in a process of its own."""

import os
import subprocess
import sys

# Tiny networks: a second thread gains nothing, and beside another busy process it costs a hundredfold.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words):
    return [sys.executable, "-m", "controlvae", *map(str, words)]


def controlvae(*words, **options):
    options = {"env": ONE_THREAD, **options}
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False, **options)
