"""Records of the metric registry: a metric, a group of metrics and the inputs of an evaluation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from controlvae.lab.runs.loaded import LoadedRun

Direction = Literal["higher", "lower"]


@dataclass(frozen=True)
class Metric:
    """One number in metrics.json and how it is shown.

    Attributes:
        path: Place in metrics.json, keys joined by dots.
        name: Human-readable name; the heading of its column.
        unit: Unit of the stored number; empty for a plain ratio or score.
        better: Direction that is better, or None where neither is.
        decimals: Digits after the decimal point.
        factor: Factor applied to the number before it is printed.
    """

    path: str
    name: str
    unit: str = ""
    better: Direction | None = None
    decimals: int = 2
    factor: float = 1.0

    def format(self, value: float) -> str:
        """Return the number as it is printed in tables."""
        return f"{self.factor * value:.{self.decimals}f}"


@dataclass(frozen=True)
class Evaluation:
    """Inputs of one evaluation, shared by all groups of metrics.

    Attributes:
        trained: Run over the data it was trained on.
        measured: Run over the test set, or the same as `trained` where there is none.
        examples: Maximal number of examples.
        importance_samples: Importance samples per example; 0 skips the IWAE bound.
        fid_images: Images per set for FID; 0 skips it, None leaves it to the device.
        results: Entries computed so far, by the name of their group.
        progress: Called with the share that is done.
    """

    trained: LoadedRun
    measured: LoadedRun
    examples: int
    importance_samples: int
    fid_images: int | None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: Callable[[float], None] = lambda share: None


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that are computed together because they share a pass over the data.

    Attributes:
        name: Name of the group.
        compute: Function that returns the entries of metrics.json.
        applies: Predicate that tells whether a run has these metrics.
        metrics: Numbers among the entries that tables show.
        progress: Share of the whole evaluation before and after this group.
    """

    name: str
    compute: Callable[[Evaluation], dict[str, Any]]
    applies: Callable[[Evaluation], bool]
    metrics: tuple[Metric, ...]
    progress: tuple[float, float]
