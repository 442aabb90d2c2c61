"""One step, the loop around it, and what it leaves on disk."""

from controlvae.training.eager import EagerEngine
from controlvae.training.engines import make_engine
from controlvae.training.loop import Engine, Glance, Run, restore, train
from controlvae.training.session import Session

__all__ = ["EagerEngine", "Engine", "Glance", "Run", "Session", "make_engine", "restore", "train"]
