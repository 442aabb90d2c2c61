"""Engine of rank 0, which tells the other ranks what to do, and the loop of those.

The training loop decides by the clock, by signals and by files, so it runs on rank 0 alone. The
others repeat the calls of its engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from controlvae.errors import RunError
from controlvae.lab.engines.base import Engine
from controlvae.lab.ranks.group import LostRanksError, RankGroup, explain_lost_ranks

_ADVANCE, _SNAPSHOT, _TARGET, _RESTORE, _COMPARE, _END = range(6)


class LeadEngine:
    """Engine of rank 0. Every call that changes the models is repeated by the other ranks.

    Args:
        engine: Engine of this rank, connected to those of the others.
        group: Ranks of the job.
        gathers: Snapshots need all ranks, because the models are sharded.
    """

    def __init__(self, engine: Any, group: RankGroup, gathers: bool = False) -> None:
        self.engine, self.group, self.gathers = engine, group, gathers
        self._ended = False

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Call the other ranks no more once one of them is lost."""
        try:
            with explain_lost_ranks(self.group):
                yield
        except LostRanksError:
            self._ended = True
            raise

    # Choosing a number of threads would restore the engine on every rank.
    can_rewind = False

    @property
    def ranks(self) -> int:
        """Number of processes that train the models."""
        return self.group.size

    @property
    def step(self) -> int:
        """Number of steps taken."""
        step: int = self.engine.step
        return step

    @step.setter
    def step(self, value: int) -> None:
        self.engine.step = value

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps. See `Engine`."""
        with self._together():
            _send(_ADVANCE, steps)
            rows: Tensor = self.engine.advance(steps)
        return rows

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return copies of all tensors of one model that change in training, on the host.

        Raises:
            RunError: If the ranks do not have the same controller any more.
        """
        with self._together():
            _send(_COMPARE, model)
            if not _is_same_everywhere(self.engine, model):
                raise RunError(
                    f"the ranks have drifted apart by step {self.step:,}; resume from the last "
                    "checkpoint, on machines of one kind"
                )
            if self.gathers:
                _send(_SNAPSHOT, model)
            found: dict[str, Tensor] = self.engine.snapshot(model)
        return found

    def set_target(self, model: int, target: float) -> None:
        """Change the target of one model on every rank."""
        with self._together():
            _send(_TARGET, model, target)
        self.engine.set_target(model, target)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue one model from a snapshot, which the other ranks receive.

        Args:
            model: Index of the model.
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        with self._together():
            _send(_RESTORE, model, float(step))
            dist.broadcast_object_list([tensors], src=0)
            self.engine.restore(model, step, tensors)

    def find_bad_example(self, model: int, step: int) -> str:
        """Return words that name an example of a step with NaN, or an empty text.

        Args:
            model: Index of the model.
            step: Number of the step, counted from zero.
        """
        find = getattr(self.engine, "find_bad_example", None)
        return "" if find is None else find(model, step)

    def close(self) -> None:
        """End the loops of the other ranks, and this engine."""
        if not self._ended:
            self._ended = True
            with suppress(LostRanksError), explain_lost_ranks(self.group):
                _send(_END)
        getattr(self.engine, "close", lambda: None)()


def follow(engine: Any, group: RankGroup) -> None:
    """Repeat the calls of rank 0's engine until it ends.

    Args:
        engine: Engine of this rank.
        group: Ranks of the job.

    Raises:
        LostRanksError: If rank 0 or another one ends without a word.
    """
    try:
        while True:
            with explain_lost_ranks(group):
                command, argument, value = _receive()
                if command == _END:
                    return
                _obey(engine, command, argument, value)
    finally:
        getattr(engine, "close", lambda: None)()


def _obey(engine: Any, command: int, argument: int, value: float) -> None:
    match command:
        case _ if command == _ADVANCE:
            engine.advance(argument)
        case _ if command == _SNAPSHOT:
            engine.snapshot(argument)
        case _ if command == _TARGET:
            engine.set_target(argument, value)
        case _ if command == _COMPARE:
            _is_same_everywhere(engine, argument)
        case _:
            received: list[Any] = [None]
            dist.broadcast_object_list(received, src=0)
            engine.restore(argument, int(value), received[0])


def _send(command: int, argument: int = 0, value: float = 0.0) -> None:
    dist.broadcast(torch.tensor([command, argument, value], dtype=torch.float64), src=0)


def _receive() -> tuple[int, int, float]:
    message = torch.zeros(3, dtype=torch.float64)
    dist.broadcast(message, src=0)
    command, argument, value = message.tolist()
    return int(command), int(argument), value


def _is_same_everywhere(engine: Engine, model: int) -> bool:
    """Return whether the controllers of all ranks have the same state, to the last bit."""
    control = engine.trainers[model].control  # type: ignore[attr-defined]
    values = [float(value) for value in control.state_dict().values()]
    own = torch.tensor(values, dtype=torch.float64).nan_to_num()
    highest, lowest = own.clone(), own.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return bool((highest == lowest).all())
