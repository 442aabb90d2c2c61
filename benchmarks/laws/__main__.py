"""Compare control laws on the suite of problems.

    python benchmarks/laws --half development --laws auto --workers 2
    python benchmarks/laws --half development --workers 16 --out results/laws

Every problem is trained under all chosen laws and seeds at once, in one process. Finished traces
are stored and not trained again. Without `--out` the judgement of each problem is printed; with it
the table, the CSV files and the figure are written too.
"""

import sys
from pathlib import Path

# `python benchmarks/laws` starts this file outside its package.
sys.path.insert(0, str(Path(__file__).parents[1]))
from laws.cli import main

if __name__ == "__main__":
    main()
