"""Searches: settings of an experiment that optimise an objective, by several workers."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import Interrupted, UserError, shell_command, unknown_name_error
from controlvae.lab.api.fit import resolve_source, source_name
from controlvae.lab.api.search_trial import TrialDisplay, TrialOutcome, run_trial
from controlvae.lab.cluster import search as cluster
from controlvae.lab.cluster.search_space import SpaceSource, describe_values, parse_space
from controlvae.lab.cluster.search_workers import Worker, WorkerWatch
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
from controlvae.lab.training.display import Display
from controlvae.lab.training.resolve import Overrides, as_assignments, resolve_experiment
from controlvae.lab.training.runner import RunOptions

Objective = str | Callable[[LoadedRun], float]
_VALIDATION_SHARE, _VALIDATIONS = 0.1, 20  # of a trial, if the experiment has no validation
_POLL_SECONDS = 1.0  # while other workers have the last trials
_MAX_INVALID = 3  # trials that cannot start, without one that can: the search itself is wrong
_STOP_SECONDS = 120.0  # for other workers of this command to save their runs
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
    better: cluster.Better
    trials: list[cluster.TrialRecord]
    importances: dict[str, float]
    summary: list[str] = field(repr=False)

    @property
    def best(self) -> cluster.TrialRecord | None:
        """Finished trial with the best value, or None."""
        return cluster.best_of(self.trials, self.better)

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


class SearchOptions(NamedTuple):
    """Options of a search next to those of its runs.

    Attributes:
        objective: Name of the objective, or a function.
        better: Direction of a function.
        trials: Number of trials.
        workers: Number of processes that this call starts, including itself.
        prune: Column of the validation curve by which trials are pruned, "none" or "auto".
        fid: Images for FID and KID.
        seed: Seed of the sampler.
    """

    objective: Objective = "elbo"
    better: cluster.Better | None = None
    trials: int = 40
    workers: int = 1
    prune: str = "auto"
    fid: int | None = None
    seed: int = 0


def search(
    source: str | Experiment | Definition,
    space: SpaceSource,
    *,
    objective: Objective = "elbo",
    better: cluster.Better | None = None,
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
    cluster.import_journal()
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
    cluster.create_folder(path, settings)
    space_texts = [f"{key}={dimension}" for key, dimension in settings.space.items()]
    command = command or shell_command("search", place or name, *_repeat("--vary", space_texts))
    options = _share_cores(options, chosen.workers)
    study = cluster.SearchStudy(
        path, settings.better, settings.space, settings.seed, settings.experiment.training.steps
    )
    words = _worker_command(place, space_texts, overrides, chosen, options, path)
    with _OtherWorkers(words, chosen.workers - 1, path, options):
        _work(study, settings, objective, chosen.trials, options, command)
    write_search_report(path)
    importances, records = study.importances(), study.records()
    summary = describe_search(path, place or name, as_assignments(overrides))
    return SearchResult(path, objective.name, settings.better, records, importances, summary)


def _check_counts(chosen: SearchOptions) -> None:
    for name, value in (("trials", chosen.trials), ("workers", chosen.workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
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
) -> cluster.SearchSettings:
    """Return the settings of a search, with validation if the objective or the pruner needs it."""
    base = resolve_experiment(source, overrides, options.data_root, options.display.note)
    prune = chosen.prune
    if prune == "auto":
        prune = objective.name if objective.is_curve else "none"
    if objective.is_curve or prune != "none":
        base = _with_validation(
            base, options.task is not None and options.task.validation is not None
        )
    return cluster.SearchSettings(
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


def _work(
    study: cluster.SearchStudy,
    settings: cluster.SearchSettings,
    objective: SearchObjective,
    trials: int,
    options: RunOptions,
    command: str,
) -> None:
    """Claim and run trials until none is left, or the time limit is reached."""
    folder, display = study.path / cluster.WORKERS_FOLDER, options.display
    deadline, watch = time.monotonic() + options.time_limit, WorkerWatch(folder)
    shown, quiet = _Announcer(study, settings, display), TrialDisplay(display)
    with Worker(folder) as worker, _release_at_end(study, worker.name, shown, trials):
        while (remaining := deadline - time.monotonic()) > 0:
            for lost in study.requeue_lost(watch, worker.name):
                display.note(f"trial {lost.number}: its worker is gone; its run will be resumed")
            claim = study.claim(trials, worker.name)
            if claim is None:
                if not _others_are_running(study):
                    return
                shown.announce_finished()
                shown.announce_waiting()
                time.sleep(min(_POLL_SECONDS, max(0.0, remaining)))
                continue
            shown.announce_start(claim, trials)
            limited = replace(options, time_limit=remaining, display=quiet)
            outcome = run_trial(study, claim, settings, objective, limited, command)
            _record(study, claim, outcome)
            shown.announce_finished()
            _raise_if_nothing_starts(study, outcome)
        shown.announce_stop(trials)


@contextmanager
def _release_at_end(
    study: cluster.SearchStudy, worker: str, shown: "_Announcer", trials: int
) -> Iterator[None]:
    """Give back the trial that this worker has, whatever ends it, and report Ctrl-C.

    Args:
        study: Study of the search.
        worker: Name of this worker.
        shown: Messages about the trials.
        trials: Number of trials.
    """
    try:
        yield
    except KeyboardInterrupt:
        study.release_all(worker)
        shown.announce_stop(trials)
        raise Interrupted(shown.describe_stop(trials)) from None
    finally:
        study.release_all(worker)


def _record(study: cluster.SearchStudy, claim: cluster.Claim, outcome: TrialOutcome) -> None:
    if outcome.state == "waiting":
        study.release(claim)
    elif outcome.value is not None:
        study.finish(claim, outcome.value)
    else:
        study.end(claim, outcome.state, outcome.reason)


def _others_are_running(study: cluster.SearchStudy) -> bool:
    return any(record.state in ("running", "waiting") for record in study.records())


def _raise_if_nothing_starts(study: cluster.SearchStudy, outcome: TrialOutcome) -> None:
    """Raise UserError if no trial could start so far: the rest would fail for the same reason."""
    states = [record.state for record in study.records() if record.state in cluster.ENDED]
    if outcome.state == "invalid" and len(states) >= _MAX_INVALID and {*states} == {"invalid"}:
        raise UserError(f"the first {len(states)} trials could not start: {outcome.reason}")


class _Announcer:
    """Messages about the trials of all workers."""

    def __init__(
        self, study: cluster.SearchStudy, settings: cluster.SearchSettings, display: Display
    ) -> None:
        self._study, self._settings, self._display = study, settings, display
        self._known = {r.number for r in study.records() if r.state in cluster.ENDED}
        self._waiting = False
        if self._known:
            display.note(f"resuming the search in {study.path}: {len(self._known)} trials done")

    def announce_start(self, claim: cluster.Claim, trials: int) -> None:
        """Show which trial starts or resumes."""
        done = sum(record.state in cluster.ENDED for record in self._study.records())
        verb = "resumes" if claim.run.experiment_file.is_file() else "starts"
        values = describe_values(claim.settings)
        self._display.note(f"trial {claim.number} {verb} ({done} of {trials} done): {values}")
        self._waiting = False

    def announce_finished(self) -> None:
        """Show the trials that ended since the last call."""
        best = self._study.best()
        for record in self._study.records():
            if record.state not in cluster.ENDED or record.number in self._known:
                continue
            self._known.add(record.number)
            if record.value is None:
                text = f"{record.state}: {record.reason}"
            else:
                text = f"{self._settings.objective} {record.value:.5g}"
                text += ", the best so far" if best and best.number == record.number else ""
            self._display.note(f"trial {record.number}: {text}")

    def announce_waiting(self) -> None:
        """Say once that other workers have the last trials."""
        if not self._waiting:
            self._display.note("waiting for the trials of other workers; Ctrl-C leaves them alone")
        self._waiting = True

    def announce_stop(self, trials: int) -> None:
        """Show how far the search is, and how to resume it."""
        self._display.status(self.describe_stop(trials))

    def describe_stop(self, trials: int) -> str:
        """Return a line that says how far the search is, and how to resume it."""
        done = sum(record.state in cluster.ENDED for record in self._study.records())
        return f"stopped with {done} of {trials} trials done; resume with: the same command"


def _share_cores(options: RunOptions, workers: int) -> RunOptions:
    """Return the options with a number of threads that leaves cores to the other workers."""
    if workers == 1 or options.threads is not None or options.device.type != "cpu":
        return options
    return replace(options, threads=max(1, (os.cpu_count() or 1) // workers))


def _worker_command(
    place: str,
    space: Sequence[str],
    overrides: Overrides,
    chosen: SearchOptions,
    options: RunOptions,
    path: Path,
) -> list[str]:
    """Return the command line of a further worker."""
    words: list[Any] = [sys.executable, "-m", "controlvae", "search", place]
    words += _repeat("--vary", space) + _repeat("--set", as_assignments(overrides))
    words += ["--objective", chosen.objective, "--trials", chosen.trials, "--prune", chosen.prune]
    words += ["--seed", chosen.seed, "--run", path, "--device", options.device]
    words += ["--checkpoint-every", f"{options.checkpoint_every}s"]
    words += [] if chosen.fid is None else ["--fid", chosen.fid]
    words += [] if options.threads is None else ["--threads", options.threads]
    words += [] if math.isinf(options.time_limit) else ["--time-limit", f"{options.time_limit}s"]
    return [*map(str, words), *options.data_root_arguments]


def _repeat(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


class _OtherWorkers:
    """Further processes of this command, which share its search.

    Args:
        words: Command line of a worker.
        count: Number of processes.
        path: Folder of the search.
        options: How this process executes runs.
    """

    def __init__(self, words: list[str], count: int, path: Path, options: RunOptions) -> None:
        self._words, self._count, self._path = words, count, path
        self._display, self._device = options.display, options.device
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        for number in range(2, self._count + 2):
            words = list(self._words)
            words[words.index("--device") + 1] = self._device_of(number)
            log = self._path / f"worker-{number}.log"
            with log.open("ab") as file:
                # A session of its own: Ctrl-C in the terminal reaches this process alone, which
                # then tells the others once.
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            self._processes.append(process)
            self._display.note(f"worker {number} writes to {log}")

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            for process in self._processes if error is not None else ():
                process.terminate()  # it saves its run
            for number, process in enumerate(self._processes, start=2):
                status = process.wait(None if error is None else _STOP_SECONDS)
                if status and error is None:
                    log = self._path / f"worker-{number}.log"
                    self._display.note(f"worker {number} ended with status {status}; see {log}")
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in self._processes:
                process.terminate()
            raise

    def _device_of(self, number: int) -> str:
        """Return the device of a worker. Several GPUs are dealt out."""
        if self._device.type != "cuda" or self._device.index is not None:
            return str(self._device)
        from torch.cuda import device_count

        return f"cuda:{(number - 1) % device_count()}"
