"""Optuna's journal of a search: a file that several processes append to. Imports Optuna."""

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, PercentilePruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from controlvae.errors import UserError
from controlvae.lab.cluster.search_space import Choice, Dimension

_STUDY = "search"
_KEPT_PERCENT = 200 / 3
_STARTUP_TRIALS = 10  # random ones, before the sampler has enough to go by; Optuna's own number
_MIN_TOP_TRIALS = 5  # for PED-ANOVA, as its authors advise


class _Backend(JournalFileBackend):
    """Journal file whose last line may be torn: its writer was killed, or its disk was full."""

    def __init__(self, path: Path) -> None:
        self._journal = path
        # Created exclusively, which NFS does atomically from version 3 on. The symbolic links that
        # are Optuna's default are followed when their age is read, so a relative one never expires.
        self._open_lock = JournalFileOpenLock(str(path))
        super().__init__(str(path), self._open_lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, after cutting a torn one that would make the next line unreadable."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._open_lock.acquire()
        try:
            with self._journal.open("r+b") as file:
                file.seek(_end_of_last_line(file))
                file.truncate()
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._open_lock.release()


def _end_of_last_line(file: Any) -> int:
    """Return the position after the last line break of a file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0


class _SeededSampler(BaseSampler):
    """Tree-structured Parzen estimator whose noise is a function of the seed and the trial.

    Several workers never draw the same numbers. Trials are counted without those that resume
    another, so a search that was stopped proposes the same as one that was not.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _sampler(self, study: Study, trial: FrozenTrial, setting: str = "") -> TPESampler:
        before = study.get_trials(deepcopy=False)[: trial.number]
        place = sum("resumes" not in other.user_attrs for other in before)
        words = f"{self._seed} {place} {setting}".encode()
        mixed = int.from_bytes(hashlib.sha256(words).digest()[:4], "big")
        return TPESampler(seed=mixed, n_startup_trials=_STARTUP_TRIALS, multivariate=True)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._sampler(study, trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler(study, trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # The name is part of the seed: two settings must not move together.
        sampler = self._sampler(study, trial, param_name)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


def open_journal(path: Path, better: str, seed: int, steps: int) -> tuple[Study, JournalStorage]:
    """Open the study in a journal file and its storage. Create the file if it is missing.

    Args:
        path: The file.
        better: Direction of the objective, "higher" or "lower".
        seed: Seed of the sampler.
        steps: Steps of a trial.

    Raises:
        UserError: If the file is not readable as a journal.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = JournalStorage(_Backend(path))
            study = optuna.create_study(
                storage=storage,
                study_name=_STUDY,
                direction="maximize" if better == "higher" else "minimize",
                load_if_exists=True,
                sampler=_SeededSampler(seed),
                pruner=_make_pruner(steps),
            )
            return study, storage
    except OSError as error:
        raise UserError(f"cannot read or write {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError, AttributeError):
        raise UserError(
            f"{path} is corrupt{_name_corrupt_line(path)}; restore the file, or choose another "
            "--run. The runs next to it are intact"
        ) from None


def _make_pruner(steps: int) -> BasePruner:
    """Return a pruner that stops trials in the worst third of all that came as far.

    It looks four times, from a third of the steps on: before that the KL is on its way to its
    target. The median at every validation, which is Optuna's default, stopped 14 of 20 trials.
    """
    sixth = max(1, steps // 6)
    return PercentilePruner(
        _KEPT_PERCENT, n_startup_trials=5, n_warmup_steps=2 * sixth, interval_steps=sixth
    )


def _name_corrupt_line(path: Path) -> str:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError
        except ValueError:
            return f" in line {number}"
    return ""


def make_distributions(space: dict[str, Dimension]) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of a search space."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an end that is off the grid is rounded
        return {path: _distribution(dimension) for path, dimension in space.items()}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values)
    low, high, log, step = dimension.low, dimension.high, dimension.log, dimension.step
    if dimension.is_whole:
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def measure_importances(study: Study) -> dict[str, float]:
    """Return the importance of each setting, with a sum of one, most important first.

    PED-ANOVA asks how differently a setting is distributed among the best tenth of the finished
    trials, or at least five of them, and among all. It needs no further package.

    Args:
        study: The study.

    Returns:
        Importances by setting. Empty with fewer than ten finished trials.
    """
    finished = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if len(finished) < 2 * _MIN_TOP_TRIALS:
        return {}
    share = max(0.1, _MIN_TOP_TRIALS / len(finished))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
        found = get_param_importances(study, evaluator=evaluator)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
