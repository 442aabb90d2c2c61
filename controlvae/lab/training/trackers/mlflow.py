"""MLflow, in a SQLite file of the run folder unless the user has a tracking server."""

import os
import time
from typing import Any

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import (
    display_name,
    flat_settings,
    numbers,
    read_run_id,
    require_package,
    write_run_id,
)

# Limits of MLflow's log_batch.
_MAX_PARAMS, _MAX_METRICS = 100, 1_000
_MAX_PARAM_LENGTH = 500


class MLflow:
    """Run of MLflow, with the settings of the experiment as its params.

    It is stored in `RUN/mlflow.db` unless `MLFLOW_TRACKING_URI` is set. `MLFLOW_EXPERIMENT_NAME`
    names the experiment. A resumed run has the same id. A step that comes twice after a crash
    keeps its first value.

    Args:
        folder: Run folder.
        experiment: Experiment of MLflow. The default is `MLFLOW_EXPERIMENT_NAME`, or "controlvae".
    """

    def __init__(self, folder: RunFolder, experiment: str | None = None) -> None:
        from mlflow.tracking import MlflowClient

        store = os.environ.get("MLFLOW_TRACKING_URI")
        database = folder.path.absolute() / "mlflow.db"
        self._client = MlflowClient(tracking_uri=store or f"sqlite:///{database}")
        self._last_step = -1
        known = read_run_id(folder, "mlflow")
        if known is not None:
            self._run_id = known
            self._resume()
            return
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "controlvae")
        artifacts = None if store else (folder.path.absolute() / "mlflow-artifacts").as_uri()
        run = self._client.create_run(
            self._experiment_id(name, artifacts), run_name=display_name(folder)
        )
        self._run_id = run.info.run_id
        self._log_params(flat_settings(folder))
        write_run_id(folder, "mlflow", self._run_id)

    @staticmethod
    def check() -> None:
        """Raise UserError if MLflow, or what its SQLite store needs, is not installed."""
        store = () if "MLFLOW_TRACKING_URI" in os.environ else ("sqlalchemy", "alembic")
        require_package("mlflow", "mlflow", *store)

    def write(self, record: dict[str, Any]) -> None:
        """Log the numbers of one record at its step, unless the step has been logged before."""
        from mlflow.entities import Metric

        if record["step"] <= self._last_step:
            return
        now = int(1000 * time.time())
        metrics = [Metric(name, v, now, record["step"]) for name, v in numbers(record).items()]
        for start in range(0, len(metrics), _MAX_METRICS):
            part = metrics[start : start + _MAX_METRICS]
            self._client.log_batch(self._run_id, metrics=part)

    def close(self) -> None:
        """Mark the run as ended. A resumed run is running again."""
        self._client.set_terminated(self._run_id)

    def _resume(self) -> None:
        """Continue the run of an earlier process, after the last step that it logged."""
        self._client.update_run(self._run_id, status="RUNNING")
        # Every record has a weight.
        logged = self._client.get_metric_history(self._run_id, "beta")
        self._last_step = max((metric.step for metric in logged), default=-1)

    def _experiment_id(self, name: str, artifacts: str | None) -> str:
        """Return the id of an experiment, which is created if it does not exist."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifacts))
            except MlflowException:  # another process has just created it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log_params(self, settings: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(v)[:_MAX_PARAM_LENGTH]) for name, v in settings.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS])
