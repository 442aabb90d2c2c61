"""Which engine trains a set of experiments: stacked on a GPU, plain elsewhere."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import torch

from controlvae.data.examples import Examples, Pictures
from controlvae.errors import UserError
from controlvae.experiments import ConvVAE, Experiment, ImageVAE
from controlvae.training.eager import EagerEngine
from controlvae.training.loop import Engine


def make_engine(experiments: Sequence[Experiment], examples: Examples, device: torch.device) -> Engine:
    """The fastest engine that can train these side by side."""
    check_alike(experiments)
    stackable = isinstance(examples, Pictures) and isinstance(experiments[0].model, ConvVAE | ImageVAE)
    try:
        if device.type == "cuda" and stackable and importlib.util.find_spec("triton") is not None:
            from controlvae.training.stacked.engine import StackedEngine

            return StackedEngine(experiments, examples, device)  # type: ignore[arg-type]
        return EagerEngine(experiments, examples, device)
    except ValueError as error:  # settings that are right one by one and do not fit together
        raise UserError(str(error)) from None


def check_alike(experiments: Sequence[Experiment]) -> None:
    """Models side by side may differ in seed and control alone."""
    first = experiments[0]
    for other in experiments[1:]:
        for part in ("data", "model", "objective", "optimiser"):
            if getattr(other, part) != getattr(first, part):
                raise UserError(f"runs side by side must share their {part}: {first.name} and {other.name} differ")
        if replace(other.training, seed=first.training.seed) != first.training:
            raise UserError(f"runs side by side must share their training settings but the seed: "
                            f"{first.name} and {other.name} differ")  # fmt: skip
