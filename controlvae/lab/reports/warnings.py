"""Warnings about a run: unfinished training, missed targets, collapse and divergence."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controlvae.diagnostics.collapse import COLLAPSE_REMEDY, constant_posterior_warning
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.reports.target_error import is_on_target, measure_target_error
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder

# Events about the reach of a target. The last of them describes the current state.
_REACH_EVENTS = ("target out of reach", "target in reach again", "target moved")


def run_warnings(folder: RunFolder, *, is_training: bool = False) -> list[str]:
    """Return what a reader must know before trusting the numbers of a run.

    Args:
        folder: The run folder.
        is_training: Skip the warnings about unfinished training.
    """
    lines = [] if is_training else _unfinished(folder)
    reach = _out_of_reach(folder)
    lagging = _lagging_critic(folder)
    lines += reach + lagging
    if not reach and not lagging:
        lines += _missed_target(folder)
    return [
        *lines,
        *_history(folder),
        *_collapsed(folder),
        *_target_below_noise(folder),
        *_evaluation_warnings(folder),
        *_divergence(folder),
    ]


def _unfinished(folder: RunFolder) -> list[str]:
    steps, last = folder.experiment().training.steps, folder.last_record()
    done = last["step"] if last else 0
    lines = [f"not finished: step {done:,} of {steps:,}"] if done < steps else []
    if done and folder.metrics() is None and latest_step(folder.checkpoints) is None:
        lines.append("no checkpoint, so there are only curves")
    return lines


def _events(folder: RunFolder, prefix: str) -> list[dict[str, Any]]:
    return [event for event in folder.events() if event["event"].startswith(prefix)]


def _out_of_reach(folder: RunFolder) -> list[str]:
    events = [event for event in folder.events() if event["event"] in _REACH_EVENTS]
    if not events or events[-1]["event"] != "target out of reach":
        return []
    event = events[-1]
    controlled = next(name for name in QUANTITY_LABELS if name in event)
    measured = f"{QUANTITY_LABELS[controlled]} {format_nats(event[controlled])}"
    return [
        f"target out of reach: from about step {event['step']:,} on, β was at its bound "
        f"{event.get('bound', event['beta']):g} with {measured} and a target of "
        f"{event['target']:g}; change the target or widen the bounds"
    ]


def _lagging_critic(folder: RunFolder) -> list[str]:
    events = _events(folder, "critic ")
    if not events or events[-1]["event"] != "critic behind":
        return []
    event = events[-1]
    return [
        f"the estimate of the total correlation is too small: at step {event['step']:,} the "
        f"accuracy of the critic was {event['critic_accuracy']:.0%}, which implies at least "
        f"{format_nats(event['least'])} nats, but the estimate was {format_nats(event['tc'])}; "
        f"a larger objective.critic_optimiser.rate helps"
    ]


def _missed_target(folder: RunFolder) -> list[str]:
    """Return a warning for a run that ends off its target with β saturated.

    Training logs an event for this. A short run may end before that happens.
    """
    if folder.last_record() is None:
        return []
    controlled = folder.experiment().controlled_quantity
    error = measure_target_error(folder.records(), controlled)
    if error is None or error.saturated is None or error.saturated < 0.5 or error.is_small:
        return []
    measured = f"{QUANTITY_LABELS[controlled]} {format_nats(error.mean)}"
    return [
        f"off its target: over the last tenth of the steps {measured} instead of "
        f"{format_nats(error.target)}, with β at its bound in {error.saturated:.0%} of them; "
        f"train longer, change the target or widen the bounds"
    ]


def _history(folder: RunFolder) -> list[str]:
    """Return notes on changes by the user: targets moved during training, and branches."""
    lines = []
    if moved := _events(folder, "target moved"):
        times = f" {len(moved)} times, last" if len(moved) > 1 else ""
        target, step = moved[-1]["target"], moved[-1]["step"]
        lines.append(f"its target was moved by hand{times} to {target:g} nats at step {step:,}")
    changes = [one for one in folder.repairs() if one.experiment is not None]
    if changes:
        times = "once" if len(changes) == 1 else f"{len(changes)} times"
        lines.append(f"it repaired itself {times}, and is no longer the run that was started")
    for event in folder.events():
        if event["event"] == "branched":
            changed = ", ".join(event["changed"])
            difference = f", which had another {changed}" if changed else ""
            lines.append(f"up to step {event['step']:,} it is {event['from']}{difference}")
    return lines


def _collapsed(folder: RunFolder) -> list[str]:
    events = _events(folder, "code ")
    if not events or events[-1]["event"] != "code collapsed":
        return []
    event = events[-1]
    since = event.get("since", event["step"])
    return [
        f"the code has collapsed: KL {event['kl']:.3f} nats from about step {since:,} on; "
        f"{COLLAPSE_REMEDY}"
    ]


def _target_below_noise(folder: RunFolder) -> list[str]:
    last = folder.last_record()
    target = last.get("target") if last else None
    if last is None or target is None or last.get("tc_sd", -math.inf) <= target:
        return []
    return [_describe_noise(folder.records())]


def _describe_noise(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe a target below the noise of its estimate, and whether the mean is on target."""
    error = measure_target_error(records, "tc")
    assert error is not None
    difference = error.mean - error.target
    last = records[-1]
    warning = (
        f"the target {last['target']:g} lies below the noise of the estimate, whose standard "
        f"deviation from batch to batch is {last['tc_sd']:.2g}"
    )
    if is_on_target(error):
        return f"{warning}: the mean is on target, a single batch is not"
    side = "above" if difference > 0 else "below"
    return (
        f"{warning}, and its mean is off target: over the last tenth of the steps it lies "
        f"{abs(difference):.2g} nats {side}"
    )


def _evaluation_warnings(folder: RunFolder) -> list[str]:
    metrics = folder.metrics() or {}
    lines = []
    if "active_units" in metrics:
        warning = constant_posterior_warning(metrics["kl"], metrics.get("active_units", 1))
        lines += [] if warning is None else [warning]
    if reason := (metrics.get("test") or {}).get("skipped"):
        lines.append(f"measured on the training set, not on a test set: {reason}")
    return lines


def _divergence(folder: RunFolder) -> list[str]:
    return [f"diverged at step {event['step']:,}" for event in _events(folder, "diverged")]
