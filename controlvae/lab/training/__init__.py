"""Training: the loop, restoring runs, scheduling, monitoring and validation."""

from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.select import make_engine
from controlvae.lab.training.loop import Progress, Run, train_runs
from controlvae.lab.training.restore import Session, restore

__all__ = [
    "EagerEngine",
    "Engine",
    "Progress",
    "Run",
    "Session",
    "make_engine",
    "restore",
    "train_runs",
]
