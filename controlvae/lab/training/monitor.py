"""Training monitor: unreachable targets, noisy estimates, lagging critics, posterior collapse."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlvae.diagnostics.collapse import COLLAPSE_REMEDY, COLLAPSE_THRESHOLD, count_used_latents
from controlvae.lab.config import Experiment
from controlvae.lab.objectives.total_correlation import min_total_correlation
from controlvae.lab.runs.checkpoint import TARGET_COUNTERS
from controlvae.lab.runs.logger import RunLogger

_BOUND_TOLERANCE = 0.002  # between a weight and its bound
_FEW_LINES = 3  # log lines in a row before a poor estimate is reported
_MANY_LINES = 10  # log lines in a row before saturation or collapse is reported
_CRITIC_MARGIN = 0.02  # nats that a critic's accuracy must prove before an estimate is doubted
_COUNTERS = (*TARGET_COUNTERS, "collapsed_lines", "behind_lines")


@dataclass
class Monitor:
    """Checks every log line of a run. Lasting conditions become events, urgent ones messages."""

    experiment: Experiment
    path: Path
    logger: RunLogger
    saturated_lines: int = 0
    collapsed_lines: int = 0
    noisy_lines: int = 0
    behind_lines: int = 0
    messages: list[str] = field(default_factory=list)  # since the last progress update

    @property
    def out_of_reach(self) -> bool:
        """True if the weight has been at its bound for many lines and the set point is missed."""
        return self.saturated_lines >= _MANY_LINES

    @property
    def collapsed(self) -> bool:
        """True if the KL has been next to zero for many lines."""
        return self.collapsed_lines >= _MANY_LINES

    def counts(self) -> dict[str, int]:
        """Return the counters for a checkpoint."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def load_state_dict(self, counts: dict[str, Any]) -> None:
        """Restore the counters from a checkpoint. Counters that older ones lack become zero."""
        for name in _COUNTERS:
            setattr(self, name, counts.get(name, 0))

    def target_moved(self) -> None:
        """Reset the counters that depend on the target."""
        for name in TARGET_COUNTERS:
            setattr(self, name, 0)

    def check(self, record: dict[str, Any]) -> None:
        """Check one line of the log."""
        self._check_reach(record)
        self._check_noise(record)
        self._check_critic(record)
        self._check_collapse(record)

    def _add_message(self, text: str) -> None:
        self.messages.append(f"{self.path}: {text}")

    def _check_reach(self, record: dict[str, Any]) -> None:
        """Log when the weight has been at its bound for long, and when it leaves it again.

        Noise between batches frees a weight for single steps without bringing the target closer.
        So most steps are enough if the mean weight is at the bound too. A weight that swings
        between its bounds has too large a gain, which is another problem. Lines whose estimate
        is too small do not count either way.
        """
        if self._is_behind(record):
            return
        controlled, bounds = self.experiment.controlled_quantity, self.experiment.control.bounds
        bound = min(bounds, key=lambda each: abs(record["beta"] - each))
        near = math.isclose(
            record["beta"], bound, rel_tol=_BOUND_TOLERANCE, abs_tol=_BOUND_TOLERANCE
        )
        at_bound = record["saturated"] > (0.5 if near else 0.99)
        target = record["target"]
        stuck = at_bound and target and abs(record[controlled] / target - 1) > 0.02
        self.saturated_lines, begins, ends = _update_streak(self.saturated_lines, bool(stuck))
        if begins:
            numbers = {name: record[name] for name in ("step", "target", controlled, "beta")}
            self.logger.event("target out of reach", **numbers, bound=bound)
        elif ends:
            self.logger.event("target in reach again", step=record["step"])

    def _check_noise(self, record: dict[str, Any]) -> None:
        """Report a controlled estimate that scatters by more than its target.

        Only its mean can be controlled then. The KL is not an estimate and scatters little.
        """
        if self.experiment.controlled_quantity != "tc" or record["target"] is None:
            return
        scatter, target = record["tc_sd"], record["target"]
        noisy = scatter > abs(target)
        self.noisy_lines, begins, _ = _update_streak(self.noisy_lines, noisy, _FEW_LINES)
        if begins:
            self.logger.event("target within noise", step=record["step"], target=target, sd=scatter)
            self._add_message(
                f"the total correlation scatters by {scatter:.2g} nats between batches, more than "
                f"its target of {target:.2g}: only its mean can be controlled; "
                "increase the target or training.batch"
            )

    def _check_critic(self, record: dict[str, Any]) -> None:
        """Report a critic whose accuracy contradicts its estimate of the total correlation."""
        behind = self._is_behind(record)
        self.behind_lines, begins, ends = _update_streak(self.behind_lines, behind, _FEW_LINES)
        if begins:
            accuracy, least = record["critic_accuracy"], self._proved_correlation(record)
            numbers = {
                "step": record["step"],
                "tc": record["tc"],
                "critic_accuracy": accuracy,
                "least": least,
            }
            self.logger.event("critic behind", **numbers)
            self._add_message(
                f"the critic is right in {accuracy:.0%}, which implies a total correlation of at "
                f"least {least:.2g} nats, but its estimate is {record['tc']:.2g}: it lags behind; "
                "increase objective.critic_optimiser.rate"
            )
        elif ends:
            self.logger.event("critic up again", step=record["step"])

    def _proved_correlation(self, record: dict[str, Any]) -> float:
        """Return the nats that a critic's accuracy proves, minus two standard errors."""
        guesses = 2 * self.experiment.training.batch * self.experiment.training.log_every
        return min_total_correlation(record["critic_accuracy"] - 1 / math.sqrt(guesses))

    def _is_behind(self, record: dict[str, Any]) -> bool:
        """Return True if the estimate is below half of what the critic's accuracy proves."""
        proved = self._proved_correlation(record) if "critic_accuracy" in record else 0.0
        return proved > _CRITIC_MARGIN and 2 * record["tc"] < proved

    def _check_collapse(self, record: dict[str, Any]) -> None:
        """Report a code that has carried next to nothing for long, and its recovery."""
        collapsed = record["kl"] < COLLAPSE_THRESHOLD
        self.collapsed_lines, begins, ends = _update_streak(self.collapsed_lines, collapsed)
        if begins:
            since = max(1, record["step"] - (_MANY_LINES - 1) * self.experiment.training.log_every)
            active, latents = (
                count_used_latents(record["kl_per_latent"]),
                len(record["kl_per_latent"]),
            )
            numbers = {"step": record["step"], "since": since, "kl": record["kl"], "in_use": active}
            self.logger.event("code collapsed", **numbers)
            self._add_message(
                f"the code has collapsed: KL {record['kl']:.3f} nats with {active} of {latents} "
                f"latents in use at step {record['step']:,}; {COLLAPSE_REMEDY}: "
                "--set 'control=Auto(3.0)'"
            )
        elif ends:
            self.logger.event("code in use again", step=record["step"], kl=record["kl"])


def _update_streak(lines: int, holds: bool, threshold: int = _MANY_LINES) -> tuple[int, bool, bool]:
    """Count consecutive log lines on which a condition holds.

    Returns the new count, and whether the streak has just reached or just left the threshold.
    """
    count = lines + 1 if holds else 0
    return count, count == threshold, lines >= threshold and not holds
