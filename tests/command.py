"""The command line as a user runs it: in a process of its own."""

import subprocess
import sys


def command(*words):
    return [sys.executable, "-m", "controlvae", *map(str, words)]


def controlvae(*words, **options):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False, **options)
