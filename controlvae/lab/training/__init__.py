"""One step, the loop around it, and what it leaves on disk."""

from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.select import make_engine
from controlvae.lab.training.loop import Progress, Run, restore, train
from controlvae.lab.training.session import Session

__all__ = ["EagerEngine", "Engine", "Progress", "Run", "Session", "make_engine", "restore", "train"]
