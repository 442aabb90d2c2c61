"""What a reader must know before trusting the numbers of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controlvae.diagnostics.collapse import REMEDY, constant_posterior_warning
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import nats
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, last_tenth

_OFF = 0.05  # of a target, over the last tenth of the steps
_REACH = (
    "target out of reach",
    "target in reach again",
    "target moved",
)  # events; the last of them stands


def warnings_of(folder: RunFolder) -> list[str]:
    """What a reader must know before trusting a run's numbers."""
    steps, last = folder.experiment().training.steps, folder.last_record()
    done = last["step"] if last else 0
    unfinished = [f"not finished: step {done:,} of {steps:,}"] if done < steps else []
    if done and folder.metrics() is None and latest_step(folder.checkpoints) is None:
        unfinished.append("it has no checkpoint, so there are its curves and nothing else")
    return unfinished + troubles_of(folder)


def troubles_of(folder: RunFolder) -> list[str]:
    """What has happened to a run, or is wrong with it, wherever it stands."""
    lines, last = [], folder.last_record()
    reach = [event for event in folder.events() if event["event"] in _REACH]
    if reach and reach[-1]["event"] == "target out of reach":
        e = reach[-1]
        held = next(name for name in QUANTITY_LABELS if name in e)
        lines.append(
            f"target out of reach: from about step {e['step']:,} on, β was at its bound {e.get('bound', e['beta']):g} "
            f"with {QUANTITY_LABELS[held]} {nats(e[held])} against a target of {e['target']:g}; move the target or widen the "
            f"bounds"
        )
    critic = [event for event in folder.events() if event["event"].startswith("critic ")]
    if critic and critic[-1]["event"] == "critic behind":
        e = critic[-1]
        lines.append(
            f"the estimate of the total correlation is too small: at step {e['step']:,} the critic was right in "
            f"{e['critic_accuracy']:.0%}, which takes {nats(e['least'])} or more, and its estimate was "
            f"{nats(e['tc'])}; a larger objective.critic_optimiser.rate helps"
        )
    elif last is not None and not lines:
        lines += _missed(folder.records(), folder.experiment().controlled_quantity)
    if moved := [event for event in folder.events() if event["event"] == "target moved"]:
        times = f" {len(moved)} times, last" if len(moved) > 1 else ""
        e = moved[-1]
        lines.append(
            f"its target was moved by hand{times} to {e['target']:g} nats at step {e['step']:,}"
        )
    for event in folder.events():
        if event["event"] == "branched":
            other = f", which had another {', '.join(event['changed'])}" if event["changed"] else ""
            lines.append(f"up to step {event['step']:,} it is {event['from']}{other}")
    code = [event for event in folder.events() if event["event"].startswith("code ")]
    if code and code[-1]["event"] == "code collapsed":
        e = code[-1]
        since = e.get("since", e["step"])
        lines.append(
            f"the code has collapsed: KL {e['kl']:.3f} nats from about step {since:,} on; {REMEDY}"
        )
    target = last.get("target") if last else None
    if last is not None and target is not None and last.get("tc_sd", -math.inf) > target:
        lines.append(_below_the_noise(folder.records()))
    metrics = folder.metrics() or {}
    if (
        "active_units" in metrics
        and (words := constant_posterior_warning(metrics["kl"], metrics["active_units"]))
        is not None
    ):
        lines.append(words)
    untested = (metrics.get("test") or {}).get("skipped")
    if untested:
        lines.append(f"measured on what it was trained on and on no test part: {untested}")
    lines += [
        f"diverged at step {event['step']:,}"
        for event in folder.events()
        if event["event"] == "diverged"
    ]
    return lines


def _missed(records: Sequence[Mapping[str, Any]], held: str) -> list[str]:
    """Of a run that no event speaks of, as of a short one: whether it ends off its target, mostly at a bound."""
    if (
        not records[-1].get("target")
        or "saturated" not in records[-1]
        or last_tenth(records, "saturated") < 0.5
    ):
        return []
    value, target = last_tenth(records, held), last_tenth(records, "target")
    if abs(value - target) <= _OFF * abs(target):
        return []
    bound = f"with β at its bound in {last_tenth(records, 'saturated'):.0%} of the steps"
    return [
        f"off its target: over the last tenth {QUANTITY_LABELS[held]} {nats(value)} against {nats(target)}, {bound}; train "
        f"longer, move the target or widen the bounds"
    ]


def _below_the_noise(records: Sequence[Mapping[str, Any]]) -> str:
    """Of a total correlation that is held at less than its estimate scatters: whether its mean is."""
    last = records[-1]
    target, scatter, off = (
        last["target"],
        last["tc_sd"],
        last_tenth(records, "tc") - last_tenth(records, "target"),
    )
    noise = (
        2 * scatter / math.sqrt(max(1.0, last["step"] / 10))
    )  # of a mean over a tenth of the steps
    words = f"the target {target:g} lies below the noise of the estimate, whose standard deviation from batch to "
    words += f"batch is {scatter:.2g}"
    if abs(off) <= max(0.1 * target, noise):
        return f"{words}: the mean is held, a single batch says little"
    side = "above" if off > 0 else "below"
    return f"{words}, and its mean is not held: over the last tenth it lies {abs(off):.2g} nats {side} the target"
