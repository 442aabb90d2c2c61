"""A problem of the suite: a plant, an optimiser and the targets of the controlled quantity."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from controlvae.laws.backend import FLOATS
from controlvae.laws.schedules import Schedule
from laws.plants.base import Plant
from laws.stack import Stack

# A running mean is made of this many blocks, the points of a stored trace.
BLOCKS_PER_WINDOW = 10


class Phase(NamedTuple):
    """Steps between two changes of the target or of the data."""

    start: int
    stop: int
    is_reachable: bool
    is_disturbed: bool  # starts with a change of the data, of which the law is not told


@dataclass(frozen=True)
class Problem:
    """Training in which a law has to hold a quantity.

    Args:
        name: Unique name.
        kind: Kind of problem; each half of the suite has every kind.
        plant: Class of the plant.
        target: First target: a number, or a schedule for a ramp.
        steps: Training steps.
        settings: Settings of the plant.
        moves: Later targets as (step, target).
        disturbances: Steps at which the plant changes and the target does not.
        unreachable: Numbers of the phases whose target cannot be reached.
        window: Steps of a running mean, chosen by the noise of the measurement: the mean should
            scatter by about one percent.
        optimiser: Optimiser of the network.
        lr: Learning rate.
        lr_schedule: Change of the learning rate: cosine to 1 % of it, or four cosine cycles.
        unit: Factor of the term and of its measurement.
        direction: "inverse" if the measured quantity grows with its weight.
        scale: Size of a relative error of one. None is the absolute target.
        gain_scale: Factor of the gains of laws that act on β itself. A tuned rival would choose
            gains of the order of the final weight divided by the target.
    """

    name: str
    kind: str
    plant: Callable[..., Plant]
    target: float | Schedule
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    moves: tuple[tuple[int, float], ...] = ()
    disturbances: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()
    window: int = 50
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 3e-3
    lr_schedule: Literal["constant", "cosine", "restarts"] = "constant"
    unit: float = 1.0
    direction: Literal["direct", "inverse"] = "direct"
    scale: float | None = None
    gain_scale: float = 1.0

    def __post_init__(self) -> None:
        changes = [self.steps, *(step for step, _ in self.moves), *self.disturbances]
        if self.window % BLOCKS_PER_WINDOW or any(step % self.stride for step in changes):
            raise ValueError(
                f"{self.name}: window must be a multiple of {BLOCKS_PER_WINDOW}, and steps and "
                f"moves multiples of window / {BLOCKS_PER_WINDOW}, got {self.window}, {changes}"
            )

    @property
    def stride(self) -> int:
        """Steps of one block of a stored trace."""
        return self.window // BLOCKS_PER_WINDOW

    @property
    def phases(self) -> list[Phase]:
        """Phases of constant target or of one ramp."""
        starts = sorted([0, *(step for step, _ in self.moves), *self.disturbances])
        stops = [*starts[1:], self.steps]
        return [
            Phase(start, stop, number not in self.unreachable, start in self.disturbances)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ]

    @cached_property
    def batch(self) -> int:
        """Batch size."""
        return self.make_plant(Stack([0], 1)).batch

    def make_plant(self, stack: Stack) -> Any:
        """Create the plant on a stack."""
        return self.plant(stack, **self.settings)

    def target_scale(self, target: float) -> float:
        """Return the size of a relative error of one."""
        return abs(target) if self.scale is None else self.scale

    def first_target(self) -> float:
        """Return the target that the first phase ends with."""
        if isinstance(self.target, Schedule):
            return float(self.target.at(float(self.steps), FLOATS))
        return self.target

    def target_blocks(self) -> np.ndarray:
        """Return the mean target of every block of a stored trace."""
        targets = np.empty(self.steps)
        if isinstance(self.target, Schedule):
            targets[:] = [self.target.at(float(step), FLOATS) for step in range(1, self.steps + 1)]
        else:
            targets[:] = self.target
        for step, target in self.moves:
            targets[step:] = target
        return targets.reshape(-1, self.stride).mean(1)

    def lr_at(self, step: int) -> float:
        """Return the learning rate at a step, counted from zero."""
        if self.lr_schedule == "constant":
            return self.lr
        cycles = 4 if self.lr_schedule == "restarts" else 1
        progress = step / self.steps * cycles % 1
        return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
