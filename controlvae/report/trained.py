"""A trained run opened for looking at: its experiment, its data, and its model at the last good checkpoint."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from controlvae.data.examples import Examples, stream_key
from controlvae.data.load import load
from controlvae.errors import UserError
from controlvae.experiments import Experiment, RunFolder
from controlvae.models import Model, build
from controlvae.objectives import gaussian_kl
from controlvae.training import checkpoint


@dataclass(frozen=True)
class Trained:
    """What pictures and metrics need of a run."""

    folder: RunFolder
    experiment: Experiment
    model: Model
    examples: Examples
    step: int
    device: torch.device


def open_run(folder: RunFolder, *, root: Path | None = None, device: torch.device | None = None) -> Trained:
    """Loads the newest good checkpoint of a run."""
    device = device or torch.device("cpu")
    experiment = folder.experiment()
    saved, _ = checkpoint.load(folder.checkpoints)
    if saved is None:
        raise UserError(f"{folder.path} has no checkpoint yet; train it first: controlvae resume {folder.path}")
    examples = load(experiment.data, root).to(device)
    model = build(experiment, examples.shape)
    try:
        model.load_state_dict(checkpoint.part(saved.tensors, "model."))
    except RuntimeError:
        raise UserError(f"the checkpoint in {folder.path} does not fit its experiment.json; was it edited?") from None
    return Trained(folder, experiment, model.to(device).eval(), examples, saved.step, device)


def some_examples(run: Trained, count: int, stream: int = 7) -> Tensor:
    """A fixed random choice of examples, the same at every call: indices (count,)."""
    generator = torch.Generator().manual_seed(stream_key(0, stream))
    return torch.randperm(len(run.examples), generator=generator)[:count].to(run.device)


@torch.no_grad()
def latent_kl(run: Trained, indices: Tensor) -> Tensor:
    """Mean KL of each latent over these examples: (latents,)."""
    return gaussian_kl(run.model.encode(run.examples.batch(indices))).mean(0)
