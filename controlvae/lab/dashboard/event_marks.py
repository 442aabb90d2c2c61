"""Marks on the curves: events of a run that a reader of its log should see."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.runs.records import is_finite

_MOST = 1_000  # marks of a run; the newest are shown
# Kind of each event that is shown. Others are about processes and threads.
_KINDS = {
    "started": "state",
    "resumed": "state",
    "stopped": "state",
    "finished": "state",
    "branched": "state",
    "diverged": "warning",
    "saved": "checkpoint",
    "target moved": "target",
    "request refused": "warning",
    "target out of reach": "warning",
    "target in reach again": "target",
    "target within noise": "warning",
    "critic behind": "warning",
    "critic up again": "state",
    "code collapsed": "warning",
    "code in use again": "state",
}


def make_marks(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the marks of events: {event, kind, step, text, time}, in order."""
    shown = [
        {
            "event": event["event"],
            "kind": _KINDS[event["event"]],
            "step": event.get("step", 0),
            "text": _describe(event),
            "time": event["time"] if isinstance(event.get("time"), str) else None,
        }
        for event in events
        if event["event"] in _KINDS
    ]
    return shown[-_MOST:]


def _describe(event: Mapping[str, Any]) -> str:
    text = str(event["event"])
    match text:
        case "saved":
            text = "checkpoint saved"
        case "target moved":
            text = f"target moved to {event['target']:g} nats"
        case "target out of reach":
            controlled = next(name for name in QUANTITY_LABELS if is_finite(event.get(name)))
            measured = f"{QUANTITY_LABELS[controlled]} {event[controlled]:.4g}"
            bound = event.get("bound", event["beta"])
            text = f"target {event['target']:g} out of reach: {measured} with β at {bound:g}"
        case "request refused":
            text = f"request refused: {event.get('reason', '')}"
        case "code collapsed":
            text = f"code collapsed: KL {event['kl']:.3g} nats"
        case "branched":
            text = f"branched from {event['from']}"
    return text
