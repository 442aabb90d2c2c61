"""Searches: settings of an experiment that optimise an objective, by several workers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError, shell_command, unknown_name_error
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.api.search_processes import (
    Objective,
    OtherWorkers,
    SearchOptions,
    repeat_option,
    share_cores,
    worker_command,
)
from controlvae.lab.api.search_worker import work_on_trials
from controlvae.lab.cluster.search import SearchStudy, import_journal
from controlvae.lab.cluster.search_records import TrialRecord, best_of
from controlvae.lab.cluster.search_settings import Better, SearchSettings, create_folder
from controlvae.lab.cluster.search_space import SpaceSource, parse_space
from controlvae.lab.config import Experiment
from controlvae.lab.custom.definition import Definition
from controlvae.lab.evaluation.search_objective import (
    CURVES,
    SearchObjective,
    check_measurable,
    count_fid_images,
    find_objective,
)
from controlvae.lab.reports.search import describe_search, write_search_report
from controlvae.lab.runs.loaded import LoadedRun, load_run
from controlvae.lab.training.resolve import Overrides, as_assignments, resolve_experiment
from controlvae.lab.training.runner import RunOptions

_VALIDATION_SHARE, _VALIDATIONS = 0.1, 20  # of a trial, if the experiment has no validation
_MAX_WORKERS = 1_024  # of one machine; a typing error must not fill its process table
_PRUNE = ("auto", "none", *CURVES)


@dataclass(frozen=True)
class SearchResult:
    """Trials of a search.

    Attributes:
        path: Folder of the search.
        objective: Name of the objective.
        better: Direction of the objective, "higher" or "lower".
        trials: All trials, by number.
        importances: Importance of each setting, with a sum of one. Empty below ten finished trials.
        summary: Human-readable lines.
    """

    path: Path
    objective: str
    better: Better
    trials: list[TrialRecord]
    importances: dict[str, float]
    summary: list[str] = field(repr=False)

    @property
    def best(self) -> TrialRecord | None:
        """Finished trial with the best value, or None."""
        return best_of(self.trials, self.better)

    def load_best(self, **options: Any) -> LoadedRun:
        """Load the run of the best trial. See `lab.load_run`.

        Raises:
            UserError: If no trial has finished.
        """
        if self.best is None:
            raise UserError(f"no trial in {self.path} has finished")
        return load_run(self.best.run, **options)

    def report(self, out: str | Path | None = None) -> Path:
        """Write an HTML report, and return its path.

        Args:
            out: The file. The default is `search.html` in the folder of the search.
        """
        return write_search_report(self.path, None if out is None else Path(out))


def search(
    source: str | Experiment | Definition,
    space: SpaceSource,
    *,
    objective: Objective = "elbo",
    better: Better | None = None,
    trials: int = 40,
    overrides: Overrides = None,
    run: str | Path | None = None,
    workers: int = 1,
    prune: str = "auto",
    fid: int | None = None,
    seed: int = 0,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    threads: str | int = "auto",
) -> SearchResult:
    """Search for the settings that optimise an objective.

    Calling the function again resumes the search. Calls in several processes, with the same folder,
    share its trials. A trial whose process was killed is resumed from its checkpoint.

    Args:
        source: Name of a preset, an experiment, a definition by `lab.define`, or the place of one,
            such as `my_vae.py`.
        space: Values by setting: `(low, high)`, `(low, high, "log")` and `(low, high, step)` are
            ranges, lists are choices. Or texts such as `control.target=4:20`.
        objective: `elbo` or `reconstruction` of held-out examples, a metric such as `fid` or `mig`,
            or a function from a loaded run to a number.
        better: Direction of a function: "higher" or "lower".
        trials: Number of trials of the whole search.
        overrides: Settings to change in every trial.
        run: Folder of the search. The default is `runs/NAME-search`.
        workers: Number of processes, including this one.
        prune: Column of the validation curve by which hopeless trials are stopped: `elbo`,
            `reconstruction` or `none`. `auto` is the objective itself, if it is one of these.
        fid: Number of images for FID and KID.
        seed: Seed of the sampler. The runs have the seed of the experiment.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        threads: Number of CPU threads of a worker, or `auto`.

    Returns:
        The trials, with the best one, the importance of each setting, and a report.

    Raises:
        UserError: If a name, value or file is wrong, or the folder holds another search.
        Interrupted: After Ctrl-C. The same call resumes the search.
    """
    options = RunOptions.parse(
        device, time_limit, checkpoint_every, False, data_root, progress, None, threads
    )
    chosen = SearchOptions(objective, better, trials, workers, prune, fid, seed)
    return run_search(source, space, overrides, chosen, options, run=run)


def run_search(
    source: str | Experiment | Definition,
    space: SpaceSource,
    overrides: Overrides,
    chosen: SearchOptions,
    options: RunOptions,
    *,
    run: str | Path | None = None,
    command: str | None = None,
) -> SearchResult:
    """Run a search with parsed options.

    Args:
        source: Name of a preset, an experiment, a definition, or the place of one.
        space: Values by setting.
        overrides: Settings to change in every trial.
        chosen: Options of the search.
        options: How to execute the runs.
        run: Folder of the search.
        command: Shell command that repeats the search.
    """
    import_journal()
    _check_counts(chosen)
    name = source_name(source) if isinstance(source, str) else source.name
    resolved, options = resolve_source(source, options)
    objective = find_objective(chosen.objective, chosen.better)
    settings = _make_settings(name, resolved, space, overrides, chosen, objective, options)
    place = source if isinstance(source, str) else options.code
    if chosen.workers > 1 and (not place or objective.function is not None):
        raise UserError(
            "several workers need a preset or a file such as my_vae.py, and an objective with a "
            "name; call lab.search with the same folder in several processes instead"
        )
    check_measurable(objective, settings.experiment, options.data_root, options.task)
    path = Path(run) if run is not None else Path("runs") / f"{name}-search"
    create_folder(path, settings)
    space_texts = [f"{key}={dimension}" for key, dimension in settings.space.items()]
    command = command or shell_command(
        "search", place or name, *repeat_option("--vary", space_texts)
    )
    options = share_cores(options, chosen.workers)
    study = SearchStudy(
        path, settings.better, settings.space, settings.seed, settings.experiment.training.steps
    )
    words = worker_command(place, space_texts, overrides, chosen, options, path)
    with OtherWorkers(words, chosen.workers - 1, path, options):
        work_on_trials(study, settings, objective, chosen.trials, options, command)
    write_search_report(path)
    importances, records = study.importances(), study.records()
    summary = describe_search(path, place or name, as_assignments(overrides))
    return SearchResult(path, objective.name, settings.better, records, importances, summary)


def _check_counts(chosen: SearchOptions) -> None:
    for name, value in (("trials", chosen.trials), ("workers", chosen.workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
    if chosen.workers > _MAX_WORKERS:
        raise UserError(f"workers must be at most {_MAX_WORKERS:,}, got {chosen.workers}")
    if chosen.prune not in _PRUNE:
        raise unknown_name_error("column to prune by", chosen.prune, _PRUNE)


def _make_settings(
    name: str,
    source: str | Experiment,
    space: SpaceSource,
    overrides: Overrides,
    chosen: SearchOptions,
    objective: SearchObjective,
    options: RunOptions,
) -> SearchSettings:
    """Return the settings of a search, with validation if the objective or the pruner needs it."""
    base = resolve_experiment(source, overrides, options.data_root, options.display.note)
    prune = chosen.prune
    if prune == "auto":
        prune = objective.name if objective.is_curve else "none"
    if objective.is_curve or prune != "none":
        base = _with_validation(
            base, options.task is not None and options.task.validation is not None
        )
    return SearchSettings(
        name,
        base,
        parse_space(base, space),
        objective.name,
        objective.better,
        prune,
        count_fid_images(objective, chosen.fid, options.device),
        chosen.seed,
    )


def _with_validation(experiment: Experiment, has_data: bool) -> Experiment:
    """Return the experiment with a validation curve, unless it has one.

    Args:
        experiment: The experiment.
        has_data: True if the user supplied data for validation.
    """
    training = experiment.training
    if training.validate_every > 0:
        return experiment
    share = training.validation or (1 if has_data else _VALIDATION_SHARE)
    lines = max(1, training.steps // _VALIDATIONS // training.log_every)
    every = lines * training.log_every
    return replace(experiment, training=replace(training, validation=share, validate_every=every))
