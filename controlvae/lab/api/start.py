"""Start of a training on this rank: planned by rank 0, followed by the others."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controlvae.lab.config import Experiment
from controlvae.lab.ranks.group import agree
from controlvae.lab.training import runner
from controlvae.lab.training.rank_jobs import (
    find_started,
    leading,
    note_started,
    require_same_experiments,
)
from controlvae.lab.training.resolve import Overrides
from controlvae.lab.training.run_setup import Plan, plan_experiment, plan_seeds, plan_training
from controlvae.lab.training.runner import RunOptions, TrainingResult


@dataclass(frozen=True)
class TrainingRequest:
    """What a user asks to train.

    Attributes:
        resolve: Function that returns a preset's name or an experiment, and the options with the
            user's code.
        overrides: Settings to change.
        run: Run folder, or None for a default one.
        seeds: Number of seeds.
        replay: Run whose recorded weight is replayed open-loop.
        command: Shell command that repeats the training.
    """

    resolve: Callable[[], tuple[str | Experiment, RunOptions]]
    overrides: Overrides
    run: str | Path | None
    seeds: int
    replay: str | Path | None
    command: str


def start_request(request: TrainingRequest, options: RunOptions) -> TrainingResult:
    """Plan and train what was asked for, on all ranks of the job.

    Args:
        request: What to train.
        options: How to execute the runs, for the rank of this process.
    """
    group = options.group
    if group.is_alone:
        source, options = request.resolve()
        return runner.start_runs(_plan(request, source, options), options, request.command)
    run = None if request.run is None else Path(request.run)
    with agree(group):
        source, options = request.resolve()
        replay = None if request.replay is None else Path(request.replay)
        base, experiment = plan_experiment(
            source, request.overrides, replay=replay, root=options.data_root
        )
        planned = plan_seeds(experiment, Path(), request.seeds).experiments
    if not group.leads:
        return runner.follow_runs(options, planned)
    with leading(group):
        started = find_started(group, run, base.name)
        if started:
            require_same_experiments(started, planned)
            resumed = runner.resume_runs(started, options)
            return resumed or TrainingResult(started, 0, 0)
        plan = _plan(request, source, options)
        note_started(plan.folders)
        return runner.start_runs(plan, options, request.command)


def _plan(request: TrainingRequest, source: str | Experiment, options: RunOptions) -> Plan:
    return plan_training(
        source,
        request.overrides,
        run=None if request.run is None else Path(request.run),
        seeds=request.seeds,
        replay=None if request.replay is None else Path(request.replay),
        root=options.data_root,
        note=options.display.note,
    )
