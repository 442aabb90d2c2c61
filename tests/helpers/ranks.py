"""Groups of gloo processes for tests: forked from one interpreter that has imported the lab.

Run as `python ranks.py CASES.py FOLDER SIZES`: every function `case_NAME(rank, size)` of the file
runs on groups of these sizes, and what it returns is saved as FOLDER/NAME-SIZE-RANK.pt. Cases with
an attribute `sizes` run on those alone.
"""

import importlib.util
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist


def run_group(cases, folder, size):
    """Fork `size` processes that run all cases, and return whether all of them succeeded."""
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os._exit(run_rank(cases, folder, rank, size))
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]
    return not any(statuses)


def run_rank(cases, folder, rank, size):
    """Run all cases on one rank. Returns the exit status."""
    try:
        if size > 1:
            store = f"file://{folder}/store-{size}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
        for name, case in cases.items():
            torch.save(case(rank, size), folder / f"{name}-{size}-{rank}.pt")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main():
    """Run the cases of a file on groups of several sizes."""
    torch.set_num_threads(1)
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    prefix, only = "case_", sys.argv[4:]
    cases = {n.removeprefix(prefix): f for n, f in vars(module).items() if n.startswith(prefix)}
    cases = {name: case for name, case in cases.items() if not only or name in only}
    done = []
    for size in map(int, sys.argv[3].split(",")):
        chosen = {n: case for n, case in cases.items() if size in getattr(case, "sizes", (size,))}
        done.append(run_group(chosen, folder, size))
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
