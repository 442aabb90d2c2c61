"""Networks for one rate each, every one continued from its neighbour at a higher rate."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.config import Experiment, override, preset
from controlvae.lab.custom.definition import Definition
from controlvae.lab.custom.task import remember_task
from controlvae.lab.engines.rate_bins import with_target
from controlvae.lab.runs.branch import branch_runs
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.run_setup import plan_seeds
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import create_folders, train_all
from controlvae.laws import Auto, Feedback, Law

# Share of the steps after which a stage ends, and its number of networks. The last stage has all.
_STAGES = ((0.6, 1), (0.8, 5))


class Stage(NamedTuple):
    """Networks that are trained side by side up to the same step."""

    path: Path
    steps: int
    rates: tuple[float, ...]  # descending

    def folder(self, rate: float) -> RunFolder:
        """Return the run folder of a rate."""
        return RunFolder(self.path / f"rate-{rate:.4g}")

    def parent_rate(self, rate: float) -> float:
        """Return the lowest rate of this stage that is not below another rate.

        A latent that has closed does not open again, so networks only descend.
        """
        return min(each for each in self.rates if each >= rate)


def train_networks(
    source: str | Experiment | Definition,
    rates: Sequence[float],
    options: RunOptions,
    *,
    law: Law | None = None,
    steps: int | None = None,
    run: str | Path | None = None,
    overrides: Overrides = None,
    command: str | None = None,
) -> list[RunFolder]:
    """Train a network for every rate, or resume such a training.

    A single network is trained at the highest rate. A few continue from it at lower rates, and all
    others from these. Each network has had the same number of steps in the end, most of which it
    shares with its neighbours. Networks of a stage train side by side.

    Args:
        source: Name of a preset, an experiment or a definition.
        rates: Rates in nats.
        options: How to execute the runs.
        law: Law of the KL weight, with any target. The default is that of user-supplied code, and
            `Auto` for a preset.
        steps: Number of optimiser steps of every network.
        run: Folder of all networks.
        overrides: Settings to change.
        command: Shell command that repeats the training.

    Returns:
        The run folders of the rates, from low to high.

    Raises:
        UserError: If a setting is not usable, or the time limit ended before all networks started.
        Interrupted: After Ctrl-C. The same call resumes.
    """
    name = source_name(source) if isinstance(source, str) else getattr(source, "name", "custom")
    given, options = resolve_source(source, options)
    path = Path(run) if run is not None else Path("runs") / f"{name}-separate"
    command = command or shell_command("curve", name, "--separate", "--run", path)
    experiment = _highest_experiment(given, max(rates), law, steps, overrides)
    stages = plan_stages(rates, experiment.training.steps, path)
    for number, stage in enumerate(stages):
        if number == 0:
            folders = _create_first(experiment, stage, options, command)
        else:
            folders = _create_branches(stages[number - 1], stage, options)
        if options.task is not None:
            for folder in folders:
                remember_task(folder.path, options.task)
        train_all(folders, options)
        is_last = stage is stages[-1]
        if not is_last and not all(folder.has_ended() for folder in folders):
            raise UserError(
                f"the time limit ended stage {number + 1} of {len(stages)}, before all networks "
                "had started; the same command continues"
            )
    return folders[::-1]


def plan_stages(rates: Sequence[float], steps: int, path: Path) -> list[Stage]:
    """Return the stages of a training, each with the rates it trains, highest first.

    Args:
        rates: Rates of the last stage.
        steps: Step at which the last stage ends.
        path: Folder of all networks.
    """
    descending = tuple(sorted(rates, reverse=True))
    stages: list[Stage] = []
    for share, count in _STAGES:
        if count < len(descending):
            block = -(-len(descending) // count)
            chosen = descending[::block]  # the highest rate of each block
            stages.append(Stage(path / f"stage-{len(stages) + 1}", round(share * steps), chosen))
    return [*stages, Stage(path / f"stage-{len(stages) + 1}", steps, descending)]


def _highest_experiment(
    given: str | Experiment,
    rate: float,
    law: Law | None,
    steps: int | None,
    overrides: Overrides,
) -> Experiment:
    """Return the experiment of the highest rate, with all of its steps."""
    base = preset(given) if isinstance(given, str) else given
    if law is None and not isinstance(given, str) and isinstance(base.control, Feedback):
        law = base.control
    training = base.training if steps is None else replace(base.training, steps=steps)
    control = with_target(law or Auto(rate), rate)
    experiment = replace(base, control=control, training=training)
    return override(experiment, as_assignments(overrides))


def _create_first(
    experiment: Experiment, stage: Stage, options: RunOptions, command: str
) -> list[RunFolder]:
    """Create the run of the first stage, if it does not exist."""
    training = replace(experiment.training, steps=stage.steps)
    rate = stage.rates[0]
    first = replace(experiment, name=f"{experiment.name} (rate {rate:.4g})", training=training)
    plan = plan_seeds(first, stage.folder(rate).path, 1)
    return create_folders(plan, command, code=options.code)


def _create_branches(before: Stage, stage: Stage, options: RunOptions) -> list[RunFolder]:
    """Create the runs of a stage from those of the stage before, where they do not exist."""
    folders = [stage.folder(rate) for rate in stage.rates]
    for rate, folder in zip(stage.rates, folders, strict=True):
        if folder.experiment_file.is_file():
            continue
        parent = before.folder(before.parent_rate(rate))
        name = parent.experiment().name.rpartition(" (rate")[0]
        settings = [
            f"control.target={rate!r}",
            f"training.steps={stage.steps}",
            f"name={name} (rate {rate:.4g})",
        ]
        command = shell_command("branch", parent.path, folder.path)
        branch_runs([parent], parent.path, folder.path, settings, command, options.display.note)
    return folders
