"""Sabotage small runs that repair themselves, with nobody there, and count how many end on target.

`python tests/repair/campaign.py results/repair/campaign.jsonl --seed 101` trains 100 sabotaged runs
and 40 clean ones on presets and user-supplied models, each in a process of its own, and appends a
line for each. Cases with a line are skipped, so the same command continues. `--table` prints the
table of a file. Runs that are killed are presets and a model file under
`controlvae train ... --unattended`; the campaign sends SIGKILL to the training process.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
_LIMIT_SECONDS = 1_800  # of a run
_PRELOADED = ("controlvae.lab.api.train", "controlvae.lab.api.fit", "controlvae.lab.engines.eager")
_MIX = {
    "rate x 30": {"shapes": 9, "text": 3, "vector": 4},
    "rate leaps x 30": {"shapes": 4, "text": 2},
    "mean for sum": {"vector": 8, "picture": 8},
    "bad batches": {"vector": 8, "picture": 8},
    "NaN images": {"vector": 8, "picture": 8},
    "kill -9": {"shapes": 5, "text": 3, "vector": 6},
    "half overflow": {"vector": 16},
}
_CLEAN = {"shapes": 14, "text": 10, "vector": 8, "picture": 8}


class Case(NamedTuple):
    """One run of the campaign."""

    sabotage: str  # empty for a clean run
    subject: str
    seed: int
    repair: bool = True


def all_cases(seed: int, clean_seed: int, repair: bool = True) -> Iterator[Case]:
    """Yield the sabotaged and the clean runs, in turns of their kinds.

    Args:
        seed: First seed of each kind of sabotaged runs.
        clean_seed: First seed of each kind of clean runs.
        repair: Let the runs repair themselves. Without, there are no clean runs and no kills.
    """
    kinds = [(name, subject, n) for name, mix in _MIX.items() for subject, n in mix.items()]
    if repair:
        kinds += [("", subject, n) for subject, n in _CLEAN.items()]
    else:
        kinds = [kind for kind in kinds if kind[0] != "kill -9"]
    for place in range(max(n for _, _, n in kinds)):
        for name, subject, n in kinds:
            if place < n:
                yield Case(name, subject, (seed if name else clean_seed) + place, repair)


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Train one case to its end and return its line.

    Args:
        case: The case.
        folder: Empty folder for its run.
    """
    began = time.monotonic()
    if case.sabotage == "kill -9":
        status, kills = _train_and_kill(case, folder)
    else:
        # Forked from a process that has imported everything: half of the time would be imports.
        process = multiprocessing.get_context("forkserver").Process(
            target=train_case, args=(tuple(case), str(folder))
        )
        process.start()
        process.join(_LIMIT_SECONDS)
        process.terminate()
        process.join()
        status, kills = process.exitcode or 0, 0
    return {
        **case._asdict(),
        "status": status,
        "kills": kills,
        "seconds": round(time.monotonic() - began, 1),
        **_read_outcome(folder),
    }


def train_case(case: tuple[Any, ...], folder: str) -> None:
    """Train one case in this process, which ends with status 1 if training fails."""
    import torch
    from subjects import train

    sabotage, subject, seed, repair = case
    output = os.open(Path(folder, "output.txt"), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    train(subject, sabotage, seed, Path(folder, "run"), repair)


def _read_outcome(folder: Path) -> dict[str, Any]:
    """Return how a run ended, from its folder alone."""
    from controlvae.lab.reports.target_error import is_on_target, measure_target_error
    from controlvae.lab.runs.folder import RunFolder

    run = RunFolder(folder / "run")
    if not run.log_file.is_file():
        lines = (folder / "output.txt").read_text().splitlines() or [""]
        return {"finished": False, "on_target": False, "error": lines[-1][:200], "repairs": []}
    error = measure_target_error(run.records(), "kl")
    finished = run.has_ended() and run.events()[-1]["event"] == "finished"
    return {
        "finished": finished,
        "on_target": finished and error is not None and is_on_target(error),
        "error": None if error is None else round(error.relative, 4),
        "repairs": [f"{one.symptom}: {one.remedy}" for one in run.repairs()],
    }


def _train_and_kill(case: Case, folder: Path) -> tuple[int, int]:
    """Train under a supervisor and kill the training process at random moments."""
    words = [sys.executable, "-m", "controlvae", "train", *_command(case, folder)]
    words += ["--run", str(folder / "run"), "--unattended", "--device", "cpu"]
    words += ["--threads", "1", "--checkpoint-every", "0.5s"]
    draw, kills, wanted = random.Random(case.seed), 0, 1 + case.seed % 2
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=folder)
        ends = time.monotonic() + _LIMIT_SECONDS
        while process.poll() is None and time.monotonic() < ends:
            if kills < wanted and _has_log(folder / "run", kills):
                time.sleep(draw.uniform(0, 3))
                kills += _kill_child(process.pid)
            time.sleep(0.1)
        if process.poll() is None:
            process.terminate()
        return process.wait(), kills


def _command(case: Case, folder: Path) -> list[str]:
    from subjects import PRESETS, preset_overrides

    if case.subject in PRESETS:
        overrides = preset_overrides(case.subject, "", case.seed)
        sets = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
        return [PRESETS[case.subject][0], *sets]
    lines = [
        f"import sys; sys.path.insert(0, {str(_HERE)!r})",
        "from controlvae import lab",
        "from subjects import fit_arguments",
        f"model, data, settings = fit_arguments({case.subject!r}, '', {case.seed})",
        "settings['steps'] = 2_500  # long enough to be killed",
        "experiment = lab.define(model, data, **settings)",
    ]
    (folder / "my_vae.py").write_text("\n".join(lines) + "\n")
    return [str(folder / "my_vae.py")]


def _has_log(run: Path, kills: int) -> bool:
    """Return whether training has begun again since the last kill."""
    log, events = run / "log.jsonl", run / "events.jsonl"
    if not log.is_file() or not log.stat().st_size:
        return False
    starts = sum('"started"' in line or '"resumed"' in line for line in events.open())
    return starts > kills


def _kill_child(parent: int) -> int:
    """Send SIGKILL to the training process of a supervisor. Return 1 if there was one."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    return int(bool(children))


def run_campaign(file: Path, cases: list[Case], jobs: int, minutes: float) -> None:
    """Run the cases that have no line in a file yet, and append theirs.

    Args:
        file: File of JSON lines.
        cases: All cases.
        jobs: Runs at the same time.
        minutes: Time after which no further run is started.
    """
    done = {Case(*(line[name] for name in Case._fields)) for line in read_lines(file)}
    ends = time.monotonic() + 60 * minutes

    def run(case: Case) -> None:
        if time.monotonic() > ends:
            return
        with tempfile.TemporaryDirectory(prefix="repair-") as name:
            line = run_case(case, Path(name))
            if not line["on_target"] and os.environ.get("KEEP_FAILED"):
                kept = Path(
                    os.environ["KEEP_FAILED"], f"{case.sabotage}-{case.subject}-{case.seed}"
                )
                shutil.copytree(name, kept, dirs_exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    file.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, [case for case in cases if case not in done]))


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a campaign."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def format_table(lines: list[dict[str, Any]]) -> str:
    """Return a table of the sabotaged and the clean runs."""
    rows = ["| sabotage | subject | runs | on target | repairs | remedies |"]
    rows += ["| --- | --- | ---: | ---: | ---: | --- |"]
    for name in (*_MIX, ""):
        for subject in dict.fromkeys(line["subject"] for line in lines):
            some = [x for x in lines if x["sabotage"] == name and x["subject"] == subject]
            if not some:
                continue
            held = sum(line["on_target"] for line in some)
            repairs = [text.partition(":")[0] for line in some for text in line["repairs"]]
            counts = {text: repairs.count(text) for text in sorted(set(repairs))}
            listed = ", ".join(f"{n} x {text}" for text, n in counts.items())
            cells = (name or "none", subject, len(some), held, len(repairs), listed or "none")
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="file of JSON lines, or the run folder of --case")
    parser.add_argument("--seed", type=int, default=101, help="first seed of sabotaged runs")
    parser.add_argument("--clean-seed", type=int, default=201, help="first seed of clean runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=35, help="start no run after this time")
    parser.add_argument("--only", action="append", help="only these sabotages; '' is none")
    parser.add_argument("--count", type=int, default=100, help="runs of each kind at most")
    parser.add_argument("--no-repair", action="store_true", help="the same without repair")
    parser.add_argument("--table", action="store_true", help="print the table of the file")
    args = parser.parse_args()
    sys.path.insert(0, str(_HERE))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["subjects", *_PRELOADED])
    if args.table:
        print(format_table(read_lines(args.file)))
        return 0
    cases = list(all_cases(args.seed, args.clean_seed, not args.no_repair))
    cases = [
        case
        for case in cases
        if (args.only is None or case.sabotage in args.only)
        and case.seed - (args.seed if case.sabotage else args.clean_seed) < args.count
    ]
    run_campaign(args.file, cases, args.jobs, args.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
