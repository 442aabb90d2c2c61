"""Kill commands at random moments, start them again, and compare with runs that were never killed.

`python tests/kill/campaign.py --kills 200` kills `train` with one seed and with several, `branch`,
`sweep`, `reproduce` and `curve`, with and without `--find`, with SIGKILL. Every killed command must
be able to go on, and must end with the same logs and the same weights, byte for byte. Commands run
in children of one process that has imported everything, so that kills land in their work and not in
their imports.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from tiny import assert_same_run, sets

SMALL = [
    *sets("training.steps=150", "training.batch=16", "training.log_every=7", "data.images=256"),
    *sets("model.channels=(4,4,4)", "model.hidden=16"),
]
FAST = ["--device", "cpu", "--checkpoint-every", "0.02s"]
_MAX_ATTEMPTS = 400  # of one command; each makes progress unless something is wrong


class Subject(NamedTuple):
    """Command that is killed."""

    start: list[str]  # words of the command
    again: list[str]  # words after a kill where there is a run; empty for the same
    folder: str  # that holds its runs
    needs: str = ""  # folder of another subject that it reads


SUBJECTS = {
    "train": Subject(
        ["train", "shapes2d-quick", *SMALL, *FAST, "--run", "one"],
        ["resume", "one", *FAST],
        "one",
    ),
    "seeds": Subject(
        ["train", "shapes2d-quick", *SMALL, *FAST, "--run", "group", "--seeds", "3"],
        ["resume", "group", *FAST],
        "group",
    ),
    "branch": Subject(
        ["branch", "parent", "child", *sets("training.steps=200", "control.target=9")],
        ["resume", "child", *FAST],
        "child",
        needs="parent",
    ),
    "sweep": Subject(
        [
            "sweep",
            "shapes2d-quick",
            "--vary",
            "control.target=12,16",
            "--run",
            "swept",
            *SMALL,
            *FAST,
        ],
        [],
        "swept",
    ),
    "curve": Subject(
        [
            *("curve", "shapes2d-quick", "--rates", "2,8", "--bins", "2", "--points", "2"),
            *("--examples", "8", "--run", "curved", *SMALL, *FAST),
        ],
        [],
        "curved",
    ),
    "find": Subject(
        [
            *("curve", "shapes2d-quick", "--rates", "2,8", "--bins", "2", "--find", "elbo"),
            *("--examples", "8", "--run", "found", *SMALL, *FAST),
        ],
        [],
        "found",
    ),
    "reproduce": Subject(
        [
            *("reproduce", "table-short", "--only", "shapes2d-short", "--seeds", "2"),
            *("--runs", "table", *SMALL, *FAST),
        ],
        [],
        "table",
    ),
}


def run_child(words: list[str], folder: Path, kill_after: float | None) -> tuple[int, bool]:
    """Run a command in a forked child. Return its status and whether it was killed.

    Args:
        words: Words of the command.
        folder: Working directory.
        kill_after: Seconds after which to kill it, or None.
    """
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.chdir(folder)
            output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = _run_command(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    deadline = None if kill_after is None else time.monotonic() + kill_after
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), False
        if deadline is not None and time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, True
        time.sleep(0.001)


def _run_command(words: list[str]) -> int:
    from controlvae.lab.cli.main import main

    sys.argv = ["controlvae", *words]
    try:
        main()
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def words_to_go_on(subject: Subject, folder: Path) -> list[str]:
    """Return the command that goes on after a kill: the same, or `resume` where there is a run."""
    has_run = any((folder / subject.folder).rglob("experiment.json"))
    return subject.again if subject.again and has_run else subject.start


def find_runs(folder: Path) -> list[Path]:
    """Return the runs below a folder, relative to it."""
    found = (path.parent.relative_to(folder) for path in folder.rglob("experiment.json"))
    return sorted(path for path in found if not any(part.startswith(".") for part in path.parts))


class Campaign:
    """Straight runs for comparison, and counts of what was killed.

    Args:
        folder: Folder for all runs.
        seed: Seed of the moments.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.draw = folder, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.seconds: dict[tuple[str, str], float] = {}  # of each command without a kill
        self.problems: list[str] = []

    def prepare(self, names: list[str]) -> None:
        """Run every subject once without a kill, and note how long it takes."""
        straight = self.folder / "straight"
        straight.mkdir()
        if any(SUBJECTS[name].needs for name in names):
            parent = ["train", "shapes2d-quick", *SMALL, *FAST, "--run", "parent"]
            self._run_whole(parent, straight)
        for name in names:
            for words in filter(None, (SUBJECTS[name].start, SUBJECTS[name].again)):
                began = time.monotonic()
                self._run_whole(words, straight)
                self.seconds[name, words[0]] = time.monotonic() - began

    def _run_whole(self, words: list[str], folder: Path) -> None:
        status, _ = run_child(words, folder, None)
        if status != 0:
            raise RuntimeError(f"{words}: {(folder / 'output.txt').read_text()[-2000:]}")

    def attack(self, name: str, kills: int) -> None:
        """Kill one command until the budget is used, then let it end and compare."""
        subject, folder = SUBJECTS[name], self.folder / f"{name}-{self.kills[name]}"
        folder.mkdir()
        straight = self.folder / "straight"
        if subject.needs:
            shutil.copytree(straight / subject.needs, folder / subject.needs)
        remaining, attempts = kills, 0
        while attempts < _MAX_ATTEMPTS:
            attempts += 1
            words = words_to_go_on(subject, folder)
            # Early moments are as likely as late ones: files are made at the beginning.
            scale = self.seconds[name, words[0]] * self.draw.choice([0.05, 0.3, 1.0])
            after = self.draw.uniform(0, scale) if remaining > 0 else None
            status, was_killed = run_child(words, folder, after)
            if was_killed:
                self.kills[name] += 1
                remaining -= 1
                self._check_folder(name, folder / subject.folder)
                continue
            if status != 0:
                text = (folder / "output.txt").read_text()[-1500:]
                self.problems.append(f"{name}: {words} gave status {status}: {text}")
                return
            if words == subject.start and subject.again:
                continue  # a branch is resumed, and a run that ended is resumed to see that
            break
        self._compare(name, straight / subject.folder, folder / subject.folder)
        if not self.problems:
            shutil.rmtree(folder)

    def _check_folder(self, name: str, folder: Path) -> None:
        """Note a folder that is neither a run nor free for one."""
        if name != "branch" or not folder.exists():
            return
        if not (folder / "experiment.json").is_file() and any(folder.iterdir()):
            self.problems.append(f"{name}: {folder} is neither a run nor empty")

    def _compare(self, name: str, straight: Path, killed: Path) -> None:
        runs = find_runs(straight)
        if find_runs(killed) != runs or not runs:
            self.problems.append(f"{name}: runs {find_runs(killed)}, expected {runs}")
            return
        for run in runs:
            try:
                assert_same_run(straight / run, killed / run)
            except AssertionError as error:
                self.problems.append(f"{name}: {run} differs: {str(error)[:500]}")


def run_campaign(
    folder: Path, kills: int, names: list[str] | None = None, per_run: int = 5, seed: int = 0
) -> Campaign:
    """Kill until a number of kills is reached, the subjects in turn.

    Args:
        folder: Folder for all runs.
        kills: Number of kills.
        names: Subjects. None takes all.
        per_run: Kills of one command before it may end.
        seed: Seed of the moments.
    """
    import torch

    import controlvae.lab.cli.commands
    import controlvae.lab.reports.sweep  # noqa: F401  imported before the first fork

    torch.set_num_threads(1)
    names = names or list(SUBJECTS)
    campaign = Campaign(folder, seed)
    campaign.prepare(names)
    while campaign.kills.total() < kills and not campaign.problems:
        name = min(names, key=lambda each: campaign.kills[each])
        campaign.attack(name, min(per_run, kills - campaign.kills.total()))
        print(f"{campaign.kills.total()} kills, {len(campaign.problems)} problems", flush=True)
    return campaign


def main() -> int:
    """Run the campaign that the command line asks for. Return 1 if a run was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="only these commands")
    parser.add_argument("--per-run", type=int, default=5, help="kills of a command until it ends")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        began = time.monotonic()
        campaign = run_campaign(Path(name), args.kills, args.only, args.per_run, args.seed)
        seconds = time.monotonic() - began
    for problem in campaign.problems:
        print(problem)
    done: dict[str, Any] = dict(campaign.kills)
    print(f"{campaign.kills.total()} kills in {seconds:.0f} s: {done}")
    print(
        f"{len(campaign.problems)} problems: runs lost, folders half-made, logs or weights that differ"
    )
    return int(bool(campaign.problems))


if __name__ == "__main__":
    sys.exit(main())
