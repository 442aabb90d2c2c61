"""Records of the metric registry: a metric, a group of metrics and the inputs of an evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controlvae.lab.runs.loaded import LoadedRun

Direction = Literal["higher", "lower"]

#: Entries of metrics.json that are measured on request only, because they need a package, weights,
#: several models or minutes, and what they need.
OPTIONAL: Mapping[str, str] = {
    "dci_es": "a minute on a CPU",
    "udr": "two or more models of the same data",
    "ms_ssim": "torchmetrics",
    "lpips": "torchmetrics, torchvision and weights",
    "fd_dinov2": "--weights dinov2=FILE",
    "prdc_dinov2": "--weights dinov2=FILE",
    "corpus_bleu": "sacrebleu",
    "mauve": "mauve-text, transformers and --weights mauve=FOLDER",
}


@dataclass(frozen=True)
class Selection:
    """Metrics to measure.

    Attributes:
        names: Top-level entries of metrics.json; None takes all but the optional ones.
        weights: Files of networks by name: `dinov2` and `mauve`.
        may_skip: Record why a metric cannot be measured instead of raising an error.
    """

    names: frozenset[str] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    may_skip: bool = False

    def wants(self, *keys: str) -> bool:
        """Return whether any of these entries is to be measured."""
        if self.names is None:
            return any(key not in OPTIONAL for key in keys)
        return bool(self.names.intersection(keys))


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
        selection: Metrics to measure.
        results: Entries computed so far, by the name of their group.
        progress: Called with the share that is done.
    """

    trained: LoadedRun
    measured: LoadedRun
    examples: int
    importance_samples: int
    fid_images: int | None
    selection: Selection = field(default_factory=Selection)
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
        keys: Entries of metrics.json by which the group is selected; none if it always runs.
    """

    name: str
    compute: Callable[[Evaluation], dict[str, Any]]
    applies: Callable[[Evaluation], bool]
    metrics: tuple[Metric, ...]
    progress: tuple[float, float]
    keys: tuple[str, ...] = ()
