"""Check of the stacked step against the eager one, before a stack is trained."""

from collections import Counter
from collections.abc import Sequence

import torch

from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import BucketOrder
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.cuda_graph import WARM_UP_STEPS
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.rng import make_batch_orders
from controlvae.lab.engines.stacked_text.engine import StackedTextEngine

_CAPTURED_STEPS = 2  # compared steps of one width that a GPU replays
_TOLERANCE = 0.02  # TF32 products and another order of sums; a wrong kernel is further off
_MAX_STEPS = 60


def find_difference(
    experiments: Sequence[Experiment],
    examples: SentenceDataset | DialogDataset,
    device: torch.device,
) -> str | None:
    """Train two models for some steps, stacked and one by one, and compare the measurements.

    Args:
        experiments: Experiments of the stack. The first two are trained.
        examples: Sentences or dialogs.
        device: Device to train on.

    Returns:
        Why the stack cannot be used, or None if both give the same numbers.
    """
    pair = experiments[:2]
    steps = _steps_until_capture(pair[0], examples)
    try:
        stacked = StackedTextEngine(pair, examples, device).advance(steps)
        expected = EagerEngine(pair, examples, device).advance(steps)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for place, name in enumerate(row_columns(pair[0])):
        actual, wanted = stacked[..., place], expected[..., place]
        if name != "saturated" and not torch.allclose(
            actual, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True
        ):
            largest = (actual - wanted).abs().max().item()
            return f"{name} differs by {largest:.3g} within {steps} steps"
    return None


def _steps_until_capture(experiment: Experiment, examples: SentenceDataset | DialogDataset) -> int:
    """Return a number of steps after which those of one width have been replayed."""
    order, widths = make_batch_orders(experiment, examples)[0], Counter[object]()
    assert isinstance(order, BucketOrder)
    for step in range(_MAX_STEPS):
        widths[order.width(step)] += 1
        if max(widths.values()) == WARM_UP_STEPS + _CAPTURED_STEPS:
            return step + 1
    return _MAX_STEPS
