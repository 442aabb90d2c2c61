"""Groups of gloo processes for tests: forked from one interpreter that has imported the lab.

Run as `python ranks.py CASES.py FOLDER SIZES`: every function `case_NAME(rank, size)` of the file
runs on groups of these sizes, and what it returns is saved as FOLDER/NAME-SIZE-RANK.pt. Cases with
an attribute `sizes` run on those alone. A function `prepare` is called first.
"""

import importlib.util
import os
import subprocess
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo  # which DistributedDataParallel imports, once for all processes
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


def run_cases(file, folder, sizes):
    """Run the cases of a file in processes of their own, and return what they saved."""
    command = [sys.executable, __file__, str(file), str(folder), ",".join(map(str, sizes))]
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {}
    for path in sorted(folder.glob("*.pt")):
        name, size, rank = path.stem.rsplit("-", 2)
        found.setdefault(name, {})[int(size), int(rank)] = torch.load(path, weights_only=True)
    return found


def main():
    """Run the cases of a file on groups of several sizes."""
    torch.set_num_threads(1)
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    getattr(module, "prepare", lambda: None)()
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
