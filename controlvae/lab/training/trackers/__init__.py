"""Loggers: destinations of log records other than `log.jsonl`, one file each."""

from controlvae.lab.training.trackers.base import Tracker, TrackerFactory
from controlvae.lab.training.trackers.csv import CSV
from controlvae.lab.training.trackers.guard import GuardedTracker, open_trackers
from controlvae.lab.training.trackers.mlflow import MLflow
from controlvae.lab.training.trackers.select import (
    TRACKERS,
    LoggerSpec,
    make_trackers,
    require_tracker_per_run,
)
from controlvae.lab.training.trackers.tensorboard import TensorBoard
from controlvae.lab.training.trackers.wandb import WandB

__all__ = [
    "CSV",
    "TRACKERS",
    "GuardedTracker",
    "LoggerSpec",
    "MLflow",
    "TensorBoard",
    "Tracker",
    "TrackerFactory",
    "WandB",
    "make_trackers",
    "open_trackers",
    "require_tracker_per_run",
]
