"""Command line of the suite."""

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from laws.data import data_file, load_array, prepare_data
from laws.judge import LawOutcome, judge_law
from laws.problem import Problem
from laws.problems import DEVELOPMENT_SEEDS, HELD_OUT_SEEDS, PROBLEMS, half_of
from laws.report import format_problem, write_report
from laws.rivals import Setting, all_settings, load_prototype
from laws.store import fingerprint, load_traces, save_traces, trace_file
from laws.train import Traces, train_stack


@dataclass(frozen=True)
class Job:
    """Work of one process: a problem and the settings to train.

    Args:
        problem: Name of the problem.
        laws: Names or families of the settings; empty for all.
        law_file: Prototype that replaces `Auto`.
        traces: Folder of traces.
        steps: Steps to train for timing; traces are then not stored.
    """

    problem: str
    laws: tuple[str, ...]
    law_file: str | None
    traces: Path
    steps: int | None


def choose_settings(names: Sequence[str], law_file: str | None) -> list[Setting]:
    """Return the settings with the given names or families.

    Args:
        names: Names or families; empty for all.
        law_file: Prototype that replaces `Auto`.
    """
    settings = all_settings()
    if law_file is not None:
        settings = [load_prototype(law_file), *(each for each in settings if each.name != "auto")]
    chosen = [each for each in settings if not names or {each.name, each.family} & set(names)]
    if not chosen:
        known = ", ".join(dict.fromkeys(each.family for each in settings))
        raise SystemExit(f"--laws must be names or families ({known}), got {' '.join(names)}")
    return chosen


def run_job(job: Job) -> tuple[str, list[LawOutcome], float]:
    """Train the settings of a job that have no stored traces, and judge all of them.

    Returns:
        Name of the problem, judgements and seconds of processor time; with `steps`, the seconds
        that all steps would take.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    problem = next(each for each in PROBLEMS if each.name == job.problem)
    seeds = DEVELOPMENT_SEEDS if half_of(problem) == "development" else HELD_OUT_SEEDS
    settings = [
        each for each in choose_settings(job.laws, job.law_file) if _is_applicable(each, problem)
    ]
    stored = {each.name: _load(job, problem, each, seeds) for each in settings}
    missing = [each for each in settings if stored[each.name] is None]
    if job.steps is not None:
        laws = [each.make(problem) for each in missing]
        train_stack(problem, laws, seeds, problem.stride)  # the first step loads modules
    started = time.process_time()
    if missing:
        laws = [each.make(problem) for each in missing]
        traces = train_stack(problem, laws, seeds, job.steps)
        for number, setting in enumerate(missing):
            rows = slice(number * len(seeds), (number + 1) * len(seeds))
            part = Traces(*(values[rows] for values in traces))
            stored[setting.name] = part
            if job.steps is None:
                digest = fingerprint(problem, setting, seeds)
                save_traces(trace_file(job.traces, problem, setting), part, digest)
    seconds = time.process_time() - started
    if job.steps is not None:
        return problem.name, [], seconds * problem.steps / job.steps
    outcomes = [judge_law(problem, name, part.measured) for name, part in stored.items()]
    return problem.name, outcomes, seconds


def _is_applicable(setting: Setting, problem: Problem) -> bool:
    """Return False for a law that does not know the direction or refuses the target."""
    try:
        setting.make(problem)
    except (TypeError, ValueError) as error:
        print(f"{problem.name}: {setting.name} skipped: {error}", flush=True)
        return False
    return True


def _load(job: Job, problem: Problem, setting: Setting, seeds: Sequence[int]) -> Traces | None:
    path = trace_file(job.traces, problem, setting)
    return None if job.steps else load_traces(path, fingerprint(problem, setting, seeds))


def run_jobs(jobs: Sequence[Job], workers: int) -> dict[str, list[LawOutcome]]:
    """Run jobs in several processes and print every judgement as it arrives.

    Args:
        jobs: Jobs, the longest first.
        workers: Number of processes, one thread each.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the processes at their start
    outcomes: dict[str, list[LawOutcome]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_job, job) for job in jobs]):
            name, judged, seconds = done.result()
            outcomes[name] = judged
            print(*format_problem(name, judged, seconds), sep="\n", flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, judge and report."""
    from laws import __main__ as entry

    parser = argparse.ArgumentParser(
        prog="python benchmarks/laws",
        description=entry.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--half", choices=["development", "held-out", "both"], default="development"
    )
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="only these problems")
    parser.add_argument("--laws", nargs="+", default=(), metavar="NAME", help="names or families")
    parser.add_argument("--law-file", metavar="PATH:CLASS", help="law class to use as auto")
    parser.add_argument("--workers", type=int, default=1, help="processes (default %(default)s)")
    parser.add_argument("--traces", type=Path, default=Path("runs/laws"), help="folder of traces")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--steps", type=int, help="train this many steps, to measure time")
    parser.add_argument("--quick", action="store_true", help="skip runs of over 10,000 steps")
    parser.add_argument("--list", action="store_true", help="list the problems")
    parser.add_argument("--prepare-data", action="store_true", help="write the data of all plants")
    options = parser.parse_args(arguments)
    if options.prepare_data:
        prepare_data(data_file())
        print(f"{data_file()}: {data_file().stat().st_size / 1e6:.1f} MB")
        return
    problems = choose_problems(options.half, options.problems)
    if options.quick:
        problems = [each for each in problems if each.steps <= 10_000]
    if options.list:
        print(*(f"{half_of(each):12} {each.kind:16} {each.name}" for each in problems), sep="\n")
        return
    load_array("digits")  # prepares the data before several processes need it
    # The longest first, so that no process works alone at the end.
    jobs = [
        Job(each.name, tuple(options.laws), options.law_file, options.traces, options.steps)
        for each in sorted(problems, key=lambda each: -each.steps)
    ]
    outcomes = run_jobs(jobs, options.workers)
    if options.steps is None:
        write_report(problems, outcomes, options.traces, options.out)


def choose_problems(half: str, names: Sequence[str] | None) -> list[Problem]:
    """Return the problems of a half, or those with the given names.

    Args:
        half: "development", "held-out" or "both".
        names: Names, which may belong to the development half alone unless `half` says otherwise.
    """
    known = {each.name: each for each in PROBLEMS if half in ("both", half_of(each))}
    if names is None:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--problems of the {half} half: {', '.join(known)}; got {unknown}")
    return [known[name] for name in names]
