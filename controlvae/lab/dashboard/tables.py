"""Tables over several runs: their settings and their metrics."""

from collections.abc import Iterator, Sequence
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config.serialization import to_dict
from controlvae.lab.evaluation.metric import Metric
from controlvae.lab.evaluation.registry import GROUPS, find_metric
from controlvae.lab.runs.folder import RunFolder, look_up


def compare_settings(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return every setting of runs by its dotted name: {name, values}, None where it is missing."""
    tables = [dict(_flatten(_settings(run))) for run in runs]
    names = list(dict.fromkeys(name for table in tables for name in table))
    return [{"name": name, "values": [table.get(name) for table in tables]} for name in names]


def compare_metrics(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the metrics that any of the runs has: {name, label, better, unit, decimals, values}.

    Values are those that tables show, None where a run has none.
    """
    measured = [_metrics(run) for run in runs]
    rows = []
    for metric in _registered():
        values = [look_up(metrics, metric.path) for metrics in measured]
        if any(value is not None for value in values):
            rows.append(
                {
                    "name": metric.path,
                    "label": metric.name,
                    "better": metric.better,
                    "unit": metric.unit,
                    "decimals": metric.decimals,
                    "values": [None if v is None else metric.factor * v for v in values],
                }
            )
    return rows


def _registered() -> list[Metric]:
    """Return all metrics, and those of the weights that were best on validation examples."""
    paths = dict.fromkeys(metric.path for group in GROUPS for metric in group.metrics)
    return [find_metric(prefix + path) for prefix in ("", "best.") for path in paths]


def _settings(run: RunFolder) -> Any:
    try:
        return to_dict(run.experiment())
    except UserError:  # the list says what is wrong
        return {}


def _metrics(run: RunFolder) -> dict[str, Any]:
    try:
        return run.metrics() or {}
    except UserError:
        return {}


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values. A part of the settings is named by its type."""
    for key, item in value.items():
        if key == "type":
            if path:
                yield path, item
        elif isinstance(item, dict):
            yield from _flatten(item, f"{path}.{key}".lstrip("."))
        else:
            yield f"{path}.{key}".lstrip("."), item
