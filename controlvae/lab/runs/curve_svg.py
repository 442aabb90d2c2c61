"""Training curves as inline SVG: a controlled quantity with its target, and β below it."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controlvae.lab.config import Experiment

# The palette of the figures. Its black is left out, because a page may be dark.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _LEFT, _RIGHT = 640, 58, 8
_LEGEND_HEIGHT, _MAX_LEGEND = 16, 6
_MAX_POINTS = 300  # of a line
_IGNORED_FRACTION = 0.1  # of a line: its start may be far outside of the rest
_LOG_RATIO = 30  # from which on β has a logarithmic axis

Point = tuple[float, float]


@dataclass
class Curve:
    """Measurements of one run over training: points of (step, value)."""

    label: str
    quantity: str  # column of the log that the law controls
    values: list[Point] = field(default_factory=list)
    targets: list[Point] = field(default_factory=list)
    betas: list[Point] = field(default_factory=list)

    @classmethod
    def of(cls, experiment: Experiment, records: Iterable[dict[str, Any]] = ()) -> "Curve":
        """Return the curve of an experiment with the records of its log."""
        label = f"{experiment.name}, seed {experiment.training.seed}"
        curve = cls(label, experiment.controlled_quantity)
        for record in records:
            curve.add(record)
        return curve

    def add(self, record: dict[str, Any]) -> None:
        """Add a record of the log. Missing and infinite values are skipped."""
        columns = {self.quantity: self.values, "target": self.targets, "beta": self.betas}
        for name, points in columns.items():
            value = record.get(name)
            if value is not None and math.isfinite(value):
                points.append((record["step"], value))


class _Panel(NamedTuple):
    """Place of a plot, and the range of its axes."""

    top: float
    height: float
    steps: tuple[float, float]
    values: tuple[float, float]
    logarithmic: bool = False

    def x(self, step: float) -> float:
        first, last = self.steps
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - first) / max(last - first, 1)

    def y(self, value: float) -> float:
        low, high = self.values
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        fraction = min(max((value - low) / (high - low), 0.0), 1.0)  # values outside: at the edge
        return self.top + self.height * (1 - fraction)


def draw_curves(curves: Sequence[Curve], start: int, steps: int) -> str:
    """Return an SVG of the controlled quantity and β of runs, with one line per run.

    Args:
        curves: Measurements of each run.
        start: First step of the axis.
        steps: Last step of the axis.
    """
    legend = _draw_legend(curves) if len(curves) > 1 else ""
    top = 8 + (_LEGEND_HEIGHT if legend else 0)
    span = (float(start), float(steps))
    lines = [points for curve in curves for points in (curve.values, curve.targets)]
    upper = _Panel(top, 150, span, _value_range(lines))
    betas = [curve.betas for curve in curves]
    lower = _Panel(top + 166, 60, span, *_beta_range(betas))
    targets = _distinct_targets(curves)
    parts = [
        legend,
        _draw_axes(upper, _axis_name(curves[0].quantity)),
        _draw_axes(lower, "β"),
        _draw_steps(lower),
        *(_draw_line(upper, points, "currentColor", dashed=True) for points in targets),
    ]
    for place, curve in enumerate(curves):
        colour = _COLOURS[place % len(_COLOURS)]
        parts += [_draw_line(upper, curve.values, colour), _draw_line(lower, curve.betas, colour)]
    parts.append(_draw_target_name(upper, targets))
    height = lower.top + lower.height + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="controlvae-curve" role="img" '
        f'viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}" '
        'style="max-width:100%;height:auto" font-family="sans-serif" font-size="11" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _axis_name(quantity: str) -> str:
    return f"{quantity.upper() if len(quantity) <= 3 else quantity} (nats)"


def _distinct_targets(curves: Sequence[Curve]) -> list[list[Point]]:
    """Return the target lines, without those that repeat another one."""
    return list({tuple(one.targets): one.targets for one in curves if one.targets}.values())


def _value_range(lines: Sequence[Sequence[Point]]) -> tuple[float, float]:
    """Return the range of an axis: from 0 if that does not waste half of it.

    Values at the start that are far outside of the rest are drawn at the edge.
    """
    every = [value for points in lines for _, value in points]
    settled = _settled_values(lines)
    low, high = min(settled, default=0.0), max(settled, default=1.0)
    room = 0.5 * max(high - low, abs(high))
    low, high = max(low - room, min(every, default=low)), min(high + room, max(every, default=high))
    if 0 <= low < 0.5 * high:
        low = 0.0
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0 else low - margin), high + margin


def _beta_range(lines: Sequence[Sequence[Point]]) -> tuple[tuple[float, float], bool]:
    """Return the range of β, and whether its axis is logarithmic."""
    values = _settled_values(lines)
    if values and min(values) > 0 and max(values) > _LOG_RATIO * min(values):
        return (min(values) / 1.2, max(values) * 1.2), True
    return _value_range(lines), False


def _settled_values(lines: Sequence[Sequence[Point]]) -> list[float]:
    return [
        value for points in lines for _, value in points[int(_IGNORED_FRACTION * len(points)) :]
    ]


def _draw_axes(panel: _Panel, name: str) -> str:
    """Return the frame, the ticks and the name of a panel."""
    right, middle = _WIDTH - _RIGHT, panel.top + panel.height / 2
    parts = [
        f'<rect x="{_LEFT}" y="{panel.top:g}" width="{right - _LEFT}" height="{panel.height:g}" '
        'fill="none" stroke="currentColor" stroke-opacity=".35"/>',
        f'<text x="12" y="{middle:g}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle:g})">{html.escape(name)}</text>',
    ]
    for value in _ticks(panel):
        y = panel.y(value)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity=".12"/>'
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    return "".join(parts)


def _draw_steps(panel: _Panel) -> str:
    """Return the ticks of the steps, below a panel."""
    base = panel.top + panel.height
    parts = [
        f'<text x="{panel.x(step):.1f}" y="{base + 14:g}" '
        f'text-anchor="{"end" if panel.x(step) > _WIDTH - 30 else "middle"}">{step:,.0f}</text>'
        for step in _round_values(*panel.steps, 5)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return (
        "".join(parts) + f'<text x="{middle:g}" y="{base + 28:g}" text-anchor="middle">step</text>'
    )


def _draw_line(panel: _Panel, points: Sequence[Point], colour: str, dashed: bool = False) -> str:
    points = [point for point in points if point[0] >= panel.steps[0]]
    if not points:
        return ""
    points = _thin_out(points)
    if dashed and points[0][0] > panel.steps[0]:  # a target holds from the first step on
        points = [(panel.steps[0], points[0][1]), *points]
    place = " ".join(f"{panel.x(step):.1f},{panel.y(value):.1f}" for step, value in points)
    style = 'stroke-dasharray="5 3" stroke-opacity=".7"' if dashed else 'stroke-width="1.5"'
    return f'<polyline points="{place}" fill="none" stroke="{colour}" {style}/>'


def _draw_target_name(panel: _Panel, targets: Sequence[Sequence[Point]]) -> str:
    """Return the legend of the dashed line, in a corner that curves seldom reach."""
    if not targets:
        return ""
    values = {value for points in targets for _, value in points}
    text = f"target {values.pop():g}" if len(values) == 1 else "target"
    x, y = _WIDTH - _RIGHT - 6, panel.top + panel.height - 8
    return (
        f'<text x="{x}" y="{y:g}" text-anchor="end"><tspan fill-opacity=".7">- - </tspan>'
        f"{text}</text>"
    )


def _draw_legend(curves: Sequence[Curve]) -> str:
    """Return one entry per run, at most `_MAX_LEGEND`."""
    shown = curves if len(curves) <= _MAX_LEGEND else curves[: _MAX_LEGEND - 1]
    labels = _short_labels(curves)[: len(shown)]
    width = (_WIDTH - _LEFT - _RIGHT) / min(len(curves), _MAX_LEGEND)
    room = int(width / 6) - 3  # letters
    parts = []
    for place, label in enumerate(labels):
        x, colour = _LEFT + place * width, _COLOURS[place % len(_COLOURS)]
        text = label if len(label) <= room else f"{label[: room - 1]}…"
        parts.append(
            f'<path d="M{x:.1f} 9h12" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 16:.1f}" y="13">{html.escape(text)}</text>'
        )
    if len(shown) < len(curves):
        x = _LEFT + len(shown) * width
        parts.append(f'<text x="{x:.1f}" y="13">and {len(curves) - len(shown)} more</text>')
    return "".join(parts)


def _short_labels(curves: Sequence[Curve]) -> list[str]:
    """Return what differs between the labels: the seeds, or the names."""
    parts = [curve.label.rpartition(", ") for curve in curves]
    for place in (2, 0):
        found = [part[place] for part in parts]
        if len({part[2 - place] for part in parts}) == 1 and len(set(found)) > 1:
            return found
    return [curve.label for curve in curves]


def _thin_out(points: Sequence[Point]) -> list[Point]:
    """Return at most `_MAX_POINTS` points: means over equal numbers of neighbours."""
    size = math.ceil(len(points) / _MAX_POINTS)
    groups = (points[at : at + size] for at in range(0, len(points), size))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _ticks(panel: _Panel) -> list[float]:
    low, high = panel.values
    if not panel.logarithmic:
        return _round_values(low, high, max(2, int(panel.height / 30)))
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / 3))
    return [10.0**power for power in range(first, last + 1, every)]


def _round_values(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between two values."""
    rough = max(high - low, 1e-12) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(size * scale for size in (1, 2, 5, 10) if size * scale >= 0.999 * rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
