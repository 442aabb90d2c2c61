"""Baseline for `bench`: the training loop most people write."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.lab.config import Elbo, Experiment
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.models import build
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.objectives import ObjectiveInputs, compute_divergence


def plain_loop(
    experiment: Experiment, examples: Dataset, device: torch.device
) -> Callable[[int], None]:
    """Return a function that trains steps in the usual way.

    The loop is eager, with default layouts and optimiser. The controller is on the host, and the
    loop calls `.item()` at every step.

    Args:
        experiment: Experiment to train.
        examples: Training set.
        device: Device to train on.
    """
    model = build(experiment, examples).to(device)
    adam, law = experiment.adam, experiment.control
    betas = (adam.beta1, adam.beta2)
    optimiser = torch.optim.Adam(model.parameters(), lr=adam.at(1.0), betas=betas)
    control = Controller(law, monitor=False)
    batch, objective = experiment.training.batch, experiment.objective
    if objective.critic_spec() is not None:
        objective = Elbo(objective.likelihood)  # a critic has no usual loop
    cost = reconstruction_loss(objective.likelihood)

    def advance(steps: int) -> None:
        for _ in range(steps):
            x = _random_batch(examples, batch, device)
            posterior = model.encode(x)
            z = posterior.sample(torch.randn(batch, model.latents, device=device))
            divergence = compute_divergence(posterior)
            inputs = ObjectiveInputs(divergence, posterior, z, len(examples), model=model, x=x)
            terms = objective.terms(inputs)
            reconstruction = cost(model, z, x, posterior.context).mean()
            measured = reconstruction if law.controls_reconstruction else terms.controlled
            beta = control.step(measured.item())
            loss: Tensor = reconstruction + terms.uncontrolled + beta * terms.controlled
            optimiser.zero_grad()
            loss.backward()
            if adam.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), adam.clip)
            optimiser.step()

    return advance


def _random_batch(examples: Dataset, batch: int, device: torch.device) -> Any:
    """Return random examples. Sentences are padded to the longest of the batch."""
    if not isinstance(examples, SentenceDataset | DialogDataset):
        return examples.batch(torch.randint(len(examples), (batch,), device=device))
    indices = torch.randint(len(examples), (batch,))
    lengths = examples.lengths[indices].amax(0).tolist()
    return examples.batch(indices.to(device), lengths)  # type: ignore[arg-type]
