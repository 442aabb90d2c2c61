"""1,000 rounds of two processes that race for three runs each. Run by hand.

    python tests/cluster/race_for_runs.py [ROUNDS]

Locks are switched off and the processes pretend to be on two machines, so that claims decide alone.
In every tenth round one process may be killed in the middle of a run, which the other one finishes.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from racing_runs import run_rounds


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = run_rounds(Path(folder), rounds, kill_every=10)
    taken = time.monotonic() - began
    print(f"{rounds} rounds in {taken:.0f} s: {counts}")
    assert counts["runs"] == 3 * rounds
    assert counts["twice"] == counts["lost"] == counts["overlap"] == 0
    assert min(counts["a"], counts["b"]) > rounds / 10  # both took part
    print("passed: no run was trained twice, and none was lost")


if __name__ == "__main__":
    main()
