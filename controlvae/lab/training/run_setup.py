"""Planning runs: their experiments, seeds and folders."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import UserError
from controlvae.lab.config import Experiment, override, preset
from controlvae.lab.reading import shorten
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.replay import replay_weight
from controlvae.lab.training.resolve import Overrides, as_assignments, infer_likelihood
from controlvae.laws import TuningWarning

MAX_SEEDS = 10_000  # of one command; a slip of the keyboard must not make millions of folders


class Plan(NamedTuple):
    """Experiments to train and the folder of each."""

    experiments: list[Experiment]
    folders: list[RunFolder]
    reserved: Path | None = None  # folder that was created so that no other process takes its name


def plan_training(
    source: str | Experiment,
    overrides: Overrides = None,
    *,
    run: Path | None = None,
    seeds: int = 1,
    replay: Path | None = None,
    root: Path | None = None,
    note: Callable[[str], None] = lambda line: None,
    may_exist: bool = False,
) -> Plan:
    """Plan one run per seed. Only a folder with a default name is created.

    Args:
        source: Name of a preset, or an experiment.
        overrides: Settings to change.
        run: Run folder. The default is `runs/NAME`, or `runs/NAME-2` and so on if it exists.
        seeds: Number of seeds, starting at the seed of the experiment.
        replay: Run, or folder of seeds, whose recorded weight is replayed open-loop.
        root: Data folder that is searched first.
        note: Receives messages for the user.
        may_exist: Accept run folders that exist already.

    Raises:
        UserError: If a name, value or folder is not usable.
    """
    base, experiment = plan_experiment(source, overrides, replay=replay, root=root, note=note)
    if run is None:
        reserved = _reserve_folder(Path("runs") / base.name)
        return plan_seeds(experiment, reserved, seeds)._replace(reserved=reserved)
    planned = plan_seeds(experiment, run, seeds)
    for folder in planned.folders:
        if not (may_exist and folder.experiment_file.is_file()):
            folder.require_empty()
    return planned


def plan_experiment(
    source: str | Experiment,
    overrides: Overrides = None,
    *,
    replay: Path | None = None,
    root: Path | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> tuple[Experiment, Experiment]:
    """Return the experiment that is named, and the one to train. Nothing is created.

    Args:
        source: Name of a preset, or an experiment.
        overrides: Settings to change.
        replay: Run, or folder of seeds, whose recorded weight is replayed open-loop.
        root: Data folder that is searched first.
        note: Receives messages for the user.

    Raises:
        UserError: If a name or value is not usable.
    """
    assignments = as_assignments(overrides)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TuningWarning)
        base = preset(source) if isinstance(source, str) else source
        experiment = override(base, assignments)
    experiment = infer_likelihood(experiment, assignments, root, note)
    if replay is not None:
        if any(text.startswith("control") for text in assignments):
            raise UserError("--replay sets the weight; remove --set control")
        experiment = replay_weight(experiment, find_runs(replay))
    for warning in caught:
        if not issubclass(warning.category, TuningWarning):
            warnings.warn(warning.message, warning.category, stacklevel=2)
    # The paper's rules for gains are about a KL in nats, not about a total correlation.
    if assignments and experiment.controlled_quantity == "kl":
        messages = {str(one.message) for one in caught if issubclass(one.category, TuningWarning)}
        for message in messages:
            note(f"note: {message}")
    return base, experiment


def plan_seeds(experiment: Experiment, path: Path, seeds: int, always_nested: bool = False) -> Plan:
    """Plan one run per seed, starting at the seed of the experiment.

    Args:
        experiment: Experiment with the first seed.
        path: Run folder, or the folder that contains one folder per seed.
        seeds: Number of seeds.
        always_nested: Use a folder per seed even if there is only one.

    Raises:
        UserError: If there are more than 10,000 seeds.
    """
    if seeds > MAX_SEEDS:
        raise UserError(f"seeds must be at most {MAX_SEEDS:,}, got {shorten(seeds)}")
    numbers = range(experiment.training.seed, experiment.training.seed + seeds)
    experiments = [override(experiment, [f"training.seed={seed}"]) for seed in numbers]
    if seeds == 1 and not always_nested:
        return Plan(experiments, [RunFolder(path)])
    return Plan(experiments, [RunFolder(path / f"seed-{seed}") for seed in numbers])


def _reserve_folder(path: Path) -> Path:
    """Create and return `path`, or `path-2` and so on if it exists."""
    candidate, number = path, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        except OSError as error:
            raise UserError(f"cannot create the run folder {candidate}: {error.strerror}") from None
        else:
            return candidate
