"""Which engine trains a set of experiments: stacked or captured on a GPU, plain elsewhere."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from controlvae.errors import UserError
from controlvae.lab.config import ConvVAEConfig, Experiment, ImageVAEConfig, TotalCorrelation
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.cuda_graph import CudaGraphEngine
from controlvae.lab.engines.eager import EagerEngine


def make_engine(
    experiments: Sequence[Experiment], examples: Dataset, device: torch.device
) -> Engine:
    """The fastest engine that can train these side by side."""
    check_alike(experiments)
    first = experiments[0]
    stackable = isinstance(examples, ImageDataset) and isinstance(
        first.model, ConvVAEConfig | ImageVAEConfig
    )
    critics = (
        [first.objective.critic_optimiser] if isinstance(first.objective, TotalCorrelation) else []
    )
    # A norm over all weights is the plain engine's alone.
    stackable = stackable and all(adam.clip is None for adam in (first.optimiser, *critics))
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels, streams and graphs are those of the current device
    try:
        if device.type != "cuda":
            return EagerEngine(experiments, examples, device)
        if stackable and importlib.util.find_spec("triton") is not None:
            from controlvae.lab.engines.stacked.engine import StackedEngine

            return StackedEngine(experiments, examples, device)  # type: ignore[arg-type]
        examples = examples.to(device)
        stays = isinstance(examples, ImageDataset) and examples.rows.device.type != device.type
        # A graph cannot fetch a batch from the host.
        return (EagerEngine if stays else CudaGraphEngine)(experiments, examples, device)
    except ValueError as error:  # settings that are right one by one and do not fit together
        raise UserError(str(error)) from None


def check_alike(experiments: Sequence[Experiment]) -> None:
    """Models side by side may differ in seed and control alone."""
    first = experiments[0]
    for other in experiments[1:]:
        for part, settings in shared_settings(other).items():
            if settings != shared_settings(first)[part]:
                but = " settings but the seed" if part == "training" else ""
                raise UserError(
                    f"runs side by side must share their {part}{but}: {first.name} and {other.name} differ"
                )


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """What runs side by side have in common."""
    parts = {
        part: getattr(experiment, part) for part in ("data", "model", "objective", "optimiser")
    }
    return {**parts, "training": replace(experiment.training, seed=0)}
