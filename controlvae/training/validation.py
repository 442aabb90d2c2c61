"""Looks at examples kept out of training while it goes on, and keeps the model that did best on them."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.data.examples import Examples, stream_key
from controlvae.experiments import Experiment, RunFolder
from controlvae.experiments.folder import write_text
from controlvae.models import build_for
from controlvae.objectives import gaussian_kl, reconstruction_of
from controlvae.training import checkpoint
from controlvae.training.sampling import parts

_BATCH = 500


class Validator:
    """The held-out examples of runs side by side, on the device they train on."""

    def __init__(self, experiments: Sequence[Experiment], examples: Examples, device: torch.device) -> None:
        training = experiments[0].training
        self.every = training.validate_every
        self.examples = examples
        self.indices = parts(len(examples), training.validation)[1].to(device)
        self.device = device

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def look(self, folder: RunFolder, experiment: Experiment, step: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Measures a snapshot, writes a line into `validation.jsonl`, and keeps the model if it is the best so far."""
        before = [record for record in folder.validations() if record["step"] < step]
        record = {"step": step, **self.measure(experiment, checkpoint.part(tensors, "model."))}
        write_text(folder.validation_file, "".join(json.dumps(line) + "\n" for line in [*before, record]))
        if record["elbo"] >= max((line["elbo"] for line in before), default=record["elbo"]):
            model = {name: value for name, value in tensors.items() if name.startswith("model.")}
            checkpoint.save(folder.best, checkpoint.Checkpoint(step, model, {"elbo": record["elbo"]}), keep=1)
        return record

    @torch.no_grad()
    def measure(self, experiment: Experiment, weights: dict[str, Tensor]) -> dict[str, float]:
        """ELBO and its parts in nats per example, one sample of z each, the same noise at every look."""
        model = build_for(experiment, self.examples).to(self.device).eval()
        model.load_state_dict(weights)
        reconstruction_error = reconstruction_of(experiment.objective)
        noise = torch.Generator().manual_seed(stream_key(0, 17))
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for chosen in self.indices.split(_BATCH):
            x = self.examples.batch(chosen)
            posterior = model.encode(x)
            z = posterior.sample(torch.randn(len(x), model.latents, generator=noise).to(self.device))
            totals += torch.stack(
                [reconstruction_error(model, z, x).double().sum(), gaussian_kl(posterior).double().sum()]
            )
        reconstruction, kl = (totals / len(self.indices)).tolist()
        return {"elbo": -(reconstruction + kl), "reconstruction": reconstruction, "kl": kl}
