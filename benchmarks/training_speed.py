"""Measure the training speed on this machine: a plain loop, pythae's trainer and our engines.

    python benchmarks/training_speed.py shapes2d-control-16 --models 1,5,25 --seconds 5

It takes the options of `controlvae bench` and does the same. `controlvae.lab.bench` holds the code.
"""

import sys

from controlvae.lab.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench"]
    main()
