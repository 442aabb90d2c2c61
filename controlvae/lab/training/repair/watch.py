"""Watch over one run: what its log, its measurements and its data say about its health."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.training.repair.symptoms import LINES_NEEDED, Symptom, find_symptom

_MAX_SEARCHES = 5  # of corrupt examples after a step of large loss, in one training
_LARGE = 30.0  # spreads of the losses of other steps
_RECENT_STEPS = 100
_LINES_KEPT = 20 * LINES_NEEDED
_NAMED = 5  # examples in a line


@dataclass
class Watch:
    """Looks for symptoms at every log line. Its state is a function of the log.

    Attributes:
        experiment: Settings of the run.
        records: Newest lines of the log.
    """

    experiment: Experiment
    records: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    _searches: int = 0

    def check(
        self, record: dict[str, Any], rows: Tensor, engine: Engine, model: int
    ) -> Symptom | None:
        """Return the symptom that a new log line shows, or None.

        Args:
            record: New line of the log.
            rows: Measurements of its steps, (steps, columns), on the host.
            engine: Engine of the run.
            model: Index of the model in it.
        """
        self.records.append(record)
        found = self._check_data(int(record["step"]), rows, engine, model)
        return found or find_symptom(list(self.records), self.experiment)

    def explain_non_finite(self, engine: Engine, model: int, step: int, what: str) -> Symptom:
        """Return the symptom of a run whose loss or gradient is NaN or infinite.

        Args:
            engine: Engine of the run.
            model: Index of the model in it.
            step: Number of the step, counted from zero.
            what: What is NaN or infinite.
        """
        if examples := _corrupt_examples(engine, model, step):
            return _name_corrupt(examples, step, f"{what} at step {step + 1:,}")
        is_half = getattr(engine, "computes_in_half", None)  # of user-supplied models
        if is_half is not None and is_half(model, step):
            evidence = f"{what} at step {step + 1:,}, in a model that computes in float16"
            return Symptom("half precision", step, evidence)
        # The turn was taken before the loss overflowed.
        since = max(0, step - self.experiment.training.log_every)
        return Symptom("non-finite loss", since, f"{what} at step {step + 1:,}")

    def _check_data(self, last: int, rows: Tensor, engine: Engine, model: int) -> Symptom | None:
        """Look at the examples of a step whose loss is far above that of the steps around it."""
        column = row_columns(self.experiment).index("reconstruction")
        losses = rows[:, column].tolist()
        around = torch.tensor([*self._recent, *losses], dtype=torch.float64)
        self._recent.extend(losses)
        if not hasattr(engine, "find_corrupt_examples") or self._searches >= _MAX_SEARCHES:
            return None
        middle = around.median()
        spread = (around - middle).abs().median() + 0.05 * middle.abs()
        place = max(range(len(losses)), key=losses.__getitem__)
        if losses[place] - middle <= _LARGE * spread:
            return None
        self._searches += 1
        step = last - len(losses) + place  # counted from zero
        examples = _corrupt_examples(engine, model, step)
        if not examples:
            return None
        what = (
            f"reconstruction {losses[place]:.4g} nats at step {step + 1:,}, {middle:.4g} around it"
        )
        return _name_corrupt(examples, step, what)


def _corrupt_examples(engine: Engine, model: int, step: int) -> list[int]:
    find = getattr(engine, "find_corrupt_examples", None)  # of user-supplied data
    return [] if find is None else find(model, step)


def _name_corrupt(examples: list[int], step: int, what: str) -> Symptom:
    shown = ", ".join(map(str, examples[:_NAMED]))
    more = f" and {len(examples) - _NAMED} more" if len(examples) > _NAMED else ""
    evidence = (
        f"{what}; NaN, infinity or values far out of range in the examples of index {shown}{more}"
    )
    return Symptom("corrupt examples", step, evidence, tuple(examples))
