"""Feed random input to everything that reads from outside.

`python tests/fuzz/run.py --minutes 30` runs for half an hour, `--count 20000` that many inputs.
A finding is a traceback, more than 20 s of a processor, a wait of more than two minutes, or a
process of more than 1 GB. Each is written to `tests/fuzz/cases/`, where it stays as a test.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
CASES = HERE / "cases"
MAX_SECONDS, MAX_MB = 20.0, 1_000.0
_MAX_WAIT = 120.0  # of the clock: a process that waits takes no time of its own
_LEAST_USE = 0.1  # seconds of a processor in that time, of a process that does not wait
_MAX_CASE_BYTES = 1 << 18
# Inputs of one process: many, because it takes seconds to start, and not all, so that a leak shows.
_BATCH, _LEAST_BATCH = 500, 100


class Result(NamedTuple):
    """What became of an input."""

    target: str
    seed: int
    status: str  # "taken", "refused", "traceback", "hang", "memory" or "killed"
    detail: str
    seconds: float
    mb: float  # largest resident memory of the process so far


def run_case(case: Any) -> tuple[str, str]:
    """Feed one input in a folder of its own. Return its status, and the traceback if there is one."""
    import targets

    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, contextlib.chdir(name):
        folder = Path(name) / "work"
        folder.mkdir()
        os.environ["CONTROLVAE_CACHE"] = str(Path(name) / "cache")
        if case.target not in ("run", "command"):  # which copy a run first
            case.write_files(folder)
        try:
            targets.TARGETS[case.target].feed(case, folder)
        except targets.EXPECTED as error:
            lines = str(error).strip().splitlines()
            if not lines or len(lines) > 40 or len(str(error)) > 5_000:
                return "traceback", f"unreadable message of {len(str(error))} letters"
            return "refused", lines[0][:200]
        except BaseException:
            return "traceback", traceback.format_exc()
    return "taken", ""


def worker(name: str, first: int, count: int, prepared: str) -> None:
    """Make and feed inputs of consecutive seeds. Print a line of JSON before and after each."""
    import targets
    import torch

    torch.set_num_threads(1)
    targets.PREPARED = Path(prepared)
    import warnings

    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # commands print
    for seed in range(first, first + count):
        case = targets.TARGETS[name].make(random.Random(f"{name}-{seed}"))
        began = time.process_time()  # so that a busy machine is no finding
        status, detail = run_case(case)
        seconds = time.process_time() - began
        mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if status in ("taken", "refused") and mb > MAX_MB:
            status, detail = "memory", f"{mb:,.0f} MB"
        result = Result(name, seed, status, detail, seconds, mb)
        out.write(json.dumps(result) + "\n")
        out.flush()
        if status == "memory":
            return  # the peak of this process says nothing about later inputs


def feed_seeds(name: str, first: int, count: int, prepared: Path) -> list[Result]:
    """Feed inputs in a process of its own, which is replaced when it hangs or dies."""
    results: list[Result] = []
    seed, end = first, first + count
    while seed < end:
        line = [sys.executable, __file__, "--worker", name, str(seed), str(end - seed)]
        process = subprocess.Popen(
            [*line, str(prepared)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _search_path()},
        )
        assert process.stdout is not None
        before = len(results)
        while True:
            ready = _wait_for_line(process)
            text = process.stdout.readline() if ready else ""
            if not text:
                break
            result = Result(*json.loads(text))
            if result.seconds > MAX_SECONDS:
                result = result._replace(status="hang", detail=f"{result.seconds:.0f} s")
            results.append(result)
            seed = result.seed + 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 if ready else 0)
        process.kill()
        status = process.wait()
        ended_early = seed < end and not (results[before:] and results[-1].status == "memory")
        if ended_early:
            kind = "killed" if ready else "hang"
            results.append(Result(name, seed, kind, f"status {status}", MAX_SECONDS, 0.0))
            seed += 1
    return results


def _wait_for_line(process: subprocess.Popen[str]) -> bool:
    """Wait for the next line of a worker. Return False if it hangs.

    On a machine with many busy processes an input may take minutes of the clock. A worker that wants
    to compute is given time until it has used more than an input may take, imports included.
    """
    assert process.stdout is not None
    began, seen = _processor_seconds(process.pid), 0.0
    while True:
        ready, _, _ = select.select([process.stdout], [], [], _MAX_WAIT)
        used = _processor_seconds(process.pid) - began
        if ready or used - seen < _LEAST_USE or used > 2 * MAX_SECONDS:
            return bool(ready)
        seen = used


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process; zero where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _search_path() -> str:
    root = HERE.parents[1]
    return os.pathsep.join([str(HERE), str(root), os.environ.get("PYTHONPATH", "")])


def keep(result: Result, prepared: Path) -> Path:
    """Write a finding to the folder of cases."""
    import targets

    targets.PREPARED = prepared
    make = targets.TARGETS[result.target].make
    case = make(random.Random(f"{result.target}-{result.seed}"))
    text = case.dump()
    if len(text) > _MAX_CASE_BYTES:  # the seed is printed, and says the same
        return Path("too large to keep")
    path = CASES / f"{result.target}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
    CASES.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def prepare_runs(folder: Path) -> Path:
    """Train the runs that are damaged, in a process of its own."""
    code = f"import targets; from pathlib import Path; targets.prepare(Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
    return folder


def main() -> int:
    """Run until the count or the time is reached. Return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10**9, help="number of inputs")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--target", action="append", help="only these targets")
    parser.add_argument("--first", type=int, default=0, help="first seed of each target")
    parser.add_argument("--no-keep", action="store_true", help="do not write cases")
    args = parser.parse_args()
    if args.count == 10**9 and args.minutes == 1e9:
        parser.error("name --count or --minutes")
    import targets

    names = args.target or list(targets.TARGETS)
    weights = {name: targets.TARGETS[name].weight for name in names}
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    slowest = dict.fromkeys(names, (0.0, 0.0))
    seeds, total, found = dict.fromkeys(names, args.first), 0, 0
    with tempfile.TemporaryDirectory(prefix="fuzz-runs-") as folder:
        prepared = prepare_runs(Path(folder)) if {"run", "command"} & set(names) else Path(folder)
        began = time.monotonic()
        while total < args.count and time.monotonic() - began < 60 * args.minutes:
            # The target that is furthest behind its share.
            name = min(names, key=lambda each: (seeds[each] - args.first) / weights[each])
            size = min(_BATCH, max(_LEAST_BATCH, 8 * weights[name]), args.count - total)
            results = feed_seeds(name, seeds[name], size, prepared)
            seeds[name] += size
            total += len(results)
            for result in results:
                counts[name][result.status] += 1
                slow, large = slowest[name]
                slowest[name] = max(slow, result.seconds), max(large, result.mb)
                if result.status not in ("taken", "refused"):
                    found += 1
                    path = "" if args.no_keep else keep(result, prepared).name
                    last = result.detail.strip().splitlines()[-3:]
                    print(f"{result.status} {name} {result.seed} {path}\n  " + "\n  ".join(last))
            print(
                f"{total:,} inputs, {time.monotonic() - began:.0f} s, {found} findings", flush=True
            )
    for name in names:
        slow, large = slowest[name]
        print(f"{name:12} {dict(counts[name])}, slowest {slow:.1f} s, at most {large:,.0f} MB")
    return int(found > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
