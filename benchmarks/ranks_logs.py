"""Compare the logs of runs with the same names in two folders.

python benchmarks/ranks_logs.py runs/packed runs/here
"""

import sys
from pathlib import Path

from controlvae.lab.runs.folder import find_runs

_FIELDS = ("reconstruction", "kl", "beta")


def main() -> int:
    """Print the largest relative difference of each run. Returns 1 if a run has no counterpart."""
    first, second = (
        {str(run.path.relative_to(root)): run.records() for run in find_runs(Path(root))}
        for root in sys.argv[1:3]
    )
    for name, records in first.items():
        pairs = list(zip(records, second.get(name, []), strict=False))
        worst = {
            field: max((abs(a[field] - b[field]) / max(abs(a[field]), 1e-12) for a, b in pairs))
            for field in _FIELDS
            if pairs
        }
        told = ", ".join(f"{field} {value:.1e}" for field, value in worst.items())
        last = records[-1]
        print(
            f"{name}: step {last['step']}, KL {last['kl']:.3f}, target {last['target']:g}, "
            f"β {last['beta']:.4g}; {len(pairs)} of {len(records)} lines differ by at most {told}"
        )
    complete = all(len(second.get(name, [])) == len(records) for name, records in first.items())
    return 0 if first and complete else 1


if __name__ == "__main__":
    sys.exit(main())
