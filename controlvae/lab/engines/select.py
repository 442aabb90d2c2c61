"""Engine selection: a stacked or the CUDA-graph engine on a GPU, eager elsewhere."""

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from controlvae.errors import UserError
from controlvae.lab.config import ConvVAEConfig, Experiment, ImageVAEConfig
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.cuda_graph import CudaGraphEngine
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.ranks.group import ALONE, RankGroup


def make_engine(
    experiments: Sequence[Experiment],
    examples: Dataset,
    device: torch.device,
    group: RankGroup = ALONE,
    note: Callable[[str], None] = warnings.warn,
) -> Engine:
    """Return the fastest engine that can train these experiments together.

    Args:
        experiments: One experiment per model, equal except for seed and control.
        examples: Training data.
        device: Device to train on.
        group: Ranks that train the models together. Several use the eager engine.
        note: Receives a line if a fast engine cannot be used.

    Raises:
        UserError: If the experiments differ in more than that, or their settings do not fit.
    """
    check_compatible(experiments)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels, streams and graphs use the current device
    try:
        if not group.is_alone:
            return EagerEngine(experiments, examples, device, (group.rank, group.size))
        if device.type != "cuda":
            return EagerEngine(experiments, examples, device)
        if _is_stackable(experiments[0], examples) and importlib.util.find_spec("triton"):
            from controlvae.lab.engines.stacked.engine import StackedEngine

            return StackedEngine(experiments, examples, device)  # type: ignore[arg-type]
        examples = examples.to(device)
        if stack := _make_text_stack(experiments, examples, device, note):
            return stack
        in_host_memory = (
            isinstance(examples, ImageDataset) and examples.rows.device.type != device.type
        )
        # A graph cannot fetch a batch from the host.
        engine = EagerEngine if in_host_memory else CudaGraphEngine
        return engine(experiments, examples, device)
    except ValueError as error:  # settings that are valid one by one but not together
        raise UserError(str(error)) from None


def _is_stackable(experiment: Experiment, examples: Dataset) -> bool:
    """Return whether the stacked engine supports the model. It has no gradient clipping."""
    if experiment.rates is not None:
        return False
    critic = experiment.objective.critic_spec()
    optimisers = [experiment.adam] + ([] if critic is None else [critic.optimiser])
    return (
        isinstance(examples, ImageDataset)
        and isinstance(experiment.model, ConvVAEConfig | ImageVAEConfig)
        and all(optimiser.clip is None for optimiser in optimisers)
    )


def _make_text_stack(
    experiments: Sequence[Experiment],
    examples: Dataset,
    device: torch.device,
    note: Callable[[str], None],
) -> Engine | None:
    """Return an engine for several text models with batches of the same widths.

    Returns None if these are no such models, or if the stack gives other numbers than the eager
    engine on this device.
    """
    if not isinstance(examples, SentenceDataset | DialogDataset) or len(experiments) == 1:
        return None
    if experiments[0].training.widths != "shared":
        return None
    from controlvae.lab.engines.stacked_text.engine import StackedTextEngine
    from controlvae.lab.engines.stacked_text.verify import find_difference

    if reason := find_difference(experiments, examples, device):
        note(f"these models are trained one by one, not as a stack: {reason}")
        return None
    return StackedTextEngine(experiments, examples, device)


def check_compatible(experiments: Sequence[Experiment]) -> None:
    """Raise UserError if experiments differ in more than seed and control."""
    first = experiments[0]
    for other in experiments[1:]:
        for part, settings in shared_settings(other).items():
            if settings != shared_settings(first)[part]:
                except_seed = " settings except the seed" if part == "training" else ""
                raise UserError(
                    f"runs trained together must share their {part}{except_seed}, "
                    f"but {first.name} and {other.name} differ; train them separately"
                )


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that runs trained together have in common, by part."""
    parts = {
        part: getattr(experiment, part)
        for part in ("data", "model", "objective", "optimiser", "rates")
    }
    return {**parts, "training": replace(experiment.training, seed=0)}
