"""Plan of jobs: how many runs train side by side, how long it takes, and what it costs."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controlvae.lab.cluster.base import Slots
from controlvae.lab.cluster.speed import MAX_MODELS, Speed
from controlvae.lab.config import Experiment
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.run_threads import recorded_threads

_TOLERANCE = 1.1  # plans that end this close are judged by the time that they keep cards busy


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be trained, which need not exist yet."""

    experiment: Experiment
    folder: RunFolder
    step: int = 0

    @property
    def steps_left(self) -> int:
        return self.experiment.training.steps - self.step


@dataclass(frozen=True)
class PlannedGroup:
    """Runs that one card can train side by side, and how they are split into packs."""

    runs: tuple[PlannedRun, ...]
    packs: tuple[tuple[PlannedRun, ...], ...]
    speed: Speed | None

    @property
    def per_pack(self) -> int:
        return max(len(pack) for pack in self.packs)

    @property
    def seconds(self) -> float | None:
        """Expected time of the largest pack."""
        if self.speed is None:
            return None
        return self.runs[0].steps_left * self.speed.seconds_per_step(self.per_pack)


@dataclass(frozen=True)
class JobPlan:
    """Jobs to submit.

    Attributes:
        groups: Compatible runs.
        gpus: GPUs of each job.
        slots: Jobs that can run at the same time.
        limit: Time limit of a job in seconds, or None.
    """

    groups: tuple[PlannedGroup, ...]
    gpus: int
    slots: Slots
    limit: float | None = None

    @property
    def jobs(self) -> list[list[tuple[PlannedRun, ...]]]:
        """Packs of each job, one per GPU. The longest jobs come first."""
        longest_first = sorted(self.groups, key=lambda group: -(group.seconds or 0.0))
        packs = [pack for group in longest_first for pack in group.packs]
        width = max(1, self.gpus)
        return [packs[start : start + width] for start in range(0, len(packs), width)]

    def job_seconds(self, packs: Sequence[Sequence[PlannedRun]]) -> float | None:
        """Return the expected time of a job."""
        group_of = {run.folder.path: group for group in self.groups for run in group.runs}
        times = []
        for pack in packs:
            speed = group_of[pack[0].folder.path].speed
            if speed is None:
                return None
            times.append(pack[0].steps_left * speed.seconds_per_step(len(pack)))
        return max(times)

    @property
    def seconds(self) -> float | None:
        """Expected time until the last job ends, without time in the queue."""
        times = [self.job_seconds(packs) for packs in self.jobs]
        if any(one is None for one in times):
            return None
        ends = [0.0] * min(len(times), self.slots.count or len(times))
        for one in times:
            heapq.heapreplace(ends, ends[0] + (one or 0.0))
        return max(ends)

    @property
    def card_seconds(self) -> float | None:
        """Expected time of all cards, or of all jobs on CPUs."""
        times = [self.job_seconds(packs) for packs in self.jobs]
        if any(one is None for one in times):
            return None
        return sum(one or 0.0 for one in times) * max(1, self.gpus)

    def describe(self) -> list[str]:
        """Return the plan as human-readable lines."""
        runs, jobs = sum(len(group.runs) for group in self.groups), len(self.jobs)
        unit = "GPU-hours" if self.gpus else "job-hours"
        lines = [f"plan: {_count(runs, 'run')} in {_count(jobs, 'job')}; {self.slots.words}"]
        lines += [_describe_group(group) for group in self.groups]
        for source in dict.fromkeys(group.speed for group in self.groups):
            if source is not None:
                lines.append(f"  speed: {source.device}, {source.source}")
        total = "expected: unknown, because no speed was measured"
        if self.seconds is not None and self.card_seconds is not None:
            total = f"expected: {format_time(self.seconds)} after the start"
            total += f", {self.card_seconds / 3600:.2g} {unit}"
            longest = max(self.job_seconds(packs) or 0.0 for packs in self.jobs)
            if self.limit is not None and longest > self.limit:
                starts = math.ceil(longest / self.limit)
                total += f"; the longest job starts about {starts} times within its --time"
        return [*lines, total]


def make_plan(
    runs: Sequence[PlannedRun],
    *,
    slots: Slots,
    gpus: int,
    per_job: int | None,
    measure: Callable[[Experiment], Speed | None],
    limit: float | None = None,
) -> JobPlan:
    """Group runs, and choose how many of each group train side by side.

    Among the sizes that fit in memory, this takes the one that ends first on the slots there are,
    and of those within a tenth of it the one that keeps cards busy for the shortest time.

    Args:
        runs: Runs to train.
        slots: Jobs that can run at the same time.
        gpus: GPUs of each job.
        per_job: Number of runs side by side, or None to choose it.
        measure: Function that returns the speed of an experiment, or None.
        limit: Time limit of a job in seconds.
    """
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        settings = shared_settings(run.experiment), recorded_threads(run.folder), run.step
        groups.setdefault(str(settings), []).append(run)
    speeds = {key: measure(members[0].experiment) for key, members in groups.items()}
    cards = max(1, slots.count or 1) * max(1, gpus)
    planned = []
    for key, members in groups.items():
        speed = speeds[key]
        share = _share(groups, speeds, key)
        mine = max(1, round(cards * share))
        size = per_job or _choose_size(members, speed, mine, gpus, slots)
        planned.append(PlannedGroup(tuple(members), _split(members, size), speed))
    return JobPlan(tuple(planned), gpus, slots, limit)


def _share(groups: dict[str, list[PlannedRun]], speeds: dict[str, Speed | None], key: str) -> float:
    """Return the share of a group in the work of all groups."""

    def work(name: str) -> float:
        speed, members = speeds[name], groups[name]
        count = min(len(members), MAX_MODELS)
        step = 1.0 if speed is None else speed.seconds_per_step(count) / count
        return len(members) * members[0].steps_left * step

    total = sum(work(name) for name in groups)
    return work(key) / total if total else 1.0


def _choose_size(
    members: Sequence[PlannedRun], speed: Speed | None, cards: int, gpus: int, slots: Slots
) -> int:
    """Return the number of runs side by side."""
    if speed is None:
        return 1
    memory_share = 1.0 if gpus else 1.0 / max(1, slots.count or 1)
    choices = []
    for packs in range(1, len(members) + 1):
        size = math.ceil(len(members) / packs)
        if size > MAX_MODELS or not (size == 1 or speed.fits(size, memory_share)):
            continue
        time = members[0].steps_left * speed.seconds_per_step(size)
        choices.append((math.ceil(packs / cards) * time, packs * time, size))
    best = min(end for end, _, _ in choices)
    _, _, size = min((busy, end, size) for end, busy, size in choices if end <= _TOLERANCE * best)
    return size


def _split(members: Sequence[PlannedRun], size: int) -> tuple[tuple[PlannedRun, ...], ...]:
    """Split runs into packs of nearly equal size."""
    count = math.ceil(len(members) / size)
    bounds = [round(len(members) * number / count) for number in range(count + 1)]
    return tuple(tuple(members[start:end]) for start, end in pairwise(bounds))


def _describe_group(group: PlannedGroup) -> str:
    names = list(dict.fromkeys(run.experiment.name for run in group.runs))
    shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    packs = _count(len(group.packs), "pack")
    line = f"  {shown}: {_count(len(group.runs), 'run')} of {group.runs[0].steps_left:,} steps, "
    line += f"{group.per_pack} side by side, {packs}"
    if group.speed is None or group.seconds is None:
        return f"{line}, speed not measured"
    rate = 1 / group.speed.seconds_per_step(group.per_pack)
    line += f" of {format_time(group.seconds)} ({rate:,.3g} steps/s each"
    memory = group.speed.memory(group.per_pack)
    return f"{line}, {memory:.2g} GiB)" if memory is not None else f"{line})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_time(seconds: float) -> str:
    """Return a duration such as `45s`, `9m` or `1h 05m`."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 90 else f"{minutes // 60}h {minutes % 60:02d}m"
