"""A short version of `campaign.py`, which kills 200 times by hand."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("campaign.py")


def test_killed_commands_go_on_and_end_with_the_same_runs():
    # In a process of its own, because it forks.
    done = subprocess.run(
        [sys.executable, SCRIPT, "--kills", "28", "--per-run", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "28 kills" in done.stdout
    for name in ("train", "seeds", "branch", "sweep", "curve", "find", "reproduce"):
        assert f"'{name}'" in done.stdout
