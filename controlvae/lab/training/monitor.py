"""What a person should hear of while a run trains: a target out of reach, an estimate that cannot be relied on."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlvae.diagnostics.collapse import COLLAPSE_REMEDY, COLLAPSE_THRESHOLD, count_used_latents
from controlvae.lab.config import Experiment
from controlvae.lab.objectives.total_correlation import min_total_correlation
from controlvae.lab.runs.logger import RunLogger

_NEAR = 0.002  # of a weight and its bound
_SOON = 3  # log lines in a row that an estimate says little, before it is worth a word
_LONG = (
    10  # log lines that a weight is at its bound, or a code without nats, before it is worth a word
)
_TELLS = 0.02  # nats that a critic's accuracy proves, before an estimate below them is worth a word
OF_THE_TARGET = ("saturated_lines", "noisy_lines")  # counts that begin anew where it moves
_COUNTS = (*OF_THE_TARGET, "collapsed_lines", "behind_lines")


@dataclass
class Monitor:
    """Sees every log line of a run. What lasts becomes an event of the journal, and news where it is urgent."""

    experiment: Experiment
    path: Path
    journal: RunLogger
    saturated_lines: int = 0
    collapsed_lines: int = 0
    noisy_lines: int = 0
    behind_lines: int = 0
    news: list[str] = field(default_factory=list)  # for a person, since the last glance

    @property
    def out_of_reach(self) -> bool:
        """Whether the weight has been at its bound for long, with the set point not met."""
        return self.saturated_lines >= _LONG

    @property
    def collapsed(self) -> bool:
        """Whether the code has carried next to nothing for long."""
        return self.collapsed_lines >= _LONG

    def counts(self) -> dict[str, int]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in _COUNTS}

    def load_state_dict(self, counts: dict[str, Any]) -> None:
        """Those of a checkpoint; older ones lack some."""
        for name in _COUNTS:
            setattr(self, name, counts.get(name, 0))

    def target_moved(self) -> None:
        """Whether it can be held is another question now."""
        for name in OF_THE_TARGET:
            setattr(self, name, 0)

    def see(self, record: dict[str, Any]) -> None:
        """One line of the log."""
        self._reach(record)
        self._noise(record)
        self._critic(record)
        self._collapse(record)

    def _say(self, words: str) -> None:
        self.news.append(f"{self.path}: {words}")

    def _reach(self, record: dict[str, Any]) -> None:
        """Says once when the weight has been at its bound for long, and once when it is free again.

        The noise of single batches frees a weight for moments, with its target as far as ever: most steps will do,
        where the mean weight is at the bound as well. One that swings between bounds has too large a gain, and is not
        meant; lines whose estimate is too small, another trouble, do not count either way.
        """
        if self._is_behind(record):
            return
        held, bounds = self.experiment.controlled_quantity, self.experiment.control.bounds
        bound = min(bounds, key=lambda each: abs(record["beta"] - each))
        near = math.isclose(record["beta"], bound, rel_tol=_NEAR, abs_tol=_NEAR)
        there = record["saturated"] > (0.5 if near else 0.99)
        stuck = there and record["target"] and abs(record[held] / record["target"] - 1) > 0.02
        self.saturated_lines, long, over = _lasting(self.saturated_lines, bool(stuck))
        if long:
            numbers = {name: record[name] for name in ("step", "target", held, "beta")}
            self.journal.event("target out of reach", **numbers, bound=bound)
        elif over:
            self.journal.event("target in reach again", step=record["step"])

    def _noise(self, record: dict[str, Any]) -> None:
        """Says when an estimate that is held has scattered by more than its target for some lines.

        Its mean is held then, at best.
        """
        if (
            self.experiment.controlled_quantity != "tc" or record["target"] is None
        ):  # the KL is no estimate, and scatters little
            return
        scatter, target = record["tc_sd"], record["target"]
        self.noisy_lines, soon, _ = _lasting(self.noisy_lines, scatter > abs(target), _SOON)
        if soon:
            self.journal.event(
                "target within noise", step=record["step"], target=target, sd=scatter
            )
            self._say(
                f"the total correlation scatters by {scatter:.2g} nats from batch to batch, more than its target of "
                f"{target:.2g}: at best its mean is held; a larger target or training.batch helps"
            )

    def _critic(self, record: dict[str, Any]) -> None:
        """Says when a critic's answers are right more often than its estimate of the total correlation allows."""
        self.behind_lines, soon, over = _lasting(self.behind_lines, self._is_behind(record), _SOON)
        if soon:
            right, least = record["critic_accuracy"], self._proved(record)
            numbers = {
                "step": record["step"],
                "tc": record["tc"],
                "critic_accuracy": right,
                "least": least,
            }
            self.journal.event("critic behind", **numbers)
            self._say(
                f"the critic is right in {right:.0%}, which takes a total correlation of {least:.2g} nats or more, and "
                f"its estimate is {record['tc']:.2g}: it is behind; a larger objective.critic_optimiser.rate helps"
            )
        elif over:
            self.journal.event("critic up again", step=record["step"])

    def _proved(self, record: dict[str, Any]) -> float:
        """The nats that a critic's accuracy proves, with two standard errors of its guesses taken off for chance."""
        guesses = 2 * self.experiment.training.batch * self.experiment.training.log_every
        return min_total_correlation(record["critic_accuracy"] - 1 / math.sqrt(guesses))

    def _is_behind(self, record: dict[str, Any]) -> bool:
        """Whether a line's total correlation is less than half of what its critic's accuracy alone proves."""
        proved = self._proved(record) if "critic_accuracy" in record else 0.0
        return proved > _TELLS and 2 * record["tc"] < proved

    def _collapse(self, record: dict[str, Any]) -> None:
        """Says once when the code has carried next to nothing for long, with the remedy, and once when it is back."""
        self.collapsed_lines, long, over = _lasting(
            self.collapsed_lines, record["kl"] < COLLAPSE_THRESHOLD
        )
        if long:
            since = max(1, record["step"] - (_LONG - 1) * self.experiment.training.log_every)
            used, latents = (
                count_used_latents(record["kl_per_latent"]),
                len(record["kl_per_latent"]),
            )
            numbers = {"step": record["step"], "since": since, "kl": record["kl"], "in_use": used}
            self.journal.event("code collapsed", **numbers)
            self._say(
                f"the code has collapsed: KL {record['kl']:.3f} nats with {used} of {latents} latents in use at step "
                f"{record['step']:,}; {COLLAPSE_REMEDY}: --set 'control=Auto(3.0)'"
            )
        elif over:
            self.journal.event("code in use again", step=record["step"], kl=record["kl"])


def _lasting(lines: int, controlled_quantity: bool, long: int = _LONG) -> tuple[int, bool, bool]:
    """How many log lines in a row something has held; whether that has just become long; whether that is just over."""
    now = lines + 1 if controlled_quantity else 0
    return now, now == long, lines >= long and not controlled_quantity
