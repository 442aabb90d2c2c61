"""Looks at examples kept out of training while it goes on, and keeps the model that did best on them."""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.data.examples import Examples, stream_key
from controlvae.experiments import Experiment, RunFolder
from controlvae.experiments.folder import write_text
from controlvae.models import build_for
from controlvae.objectives import measure_bound
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

    def look(self, folder: RunFolder, experiment: Experiment, step: int, tensors: dict[str, Tensor]) -> None:
        """Measures a snapshot, writes a line into `validation.jsonl`, and keeps the model if it is the best so far."""
        before = [record for record in folder.validations() if record["step"] < step]
        record = {"step": step, **self.measure(experiment, checkpoint.part(tensors, "model."))}
        write_text(folder.validation_file, "".join(json.dumps(line) + "\n" for line in [*before, record]))
        if record["elbo"] >= max((line["elbo"] for line in before), default=record["elbo"]):
            model = {name: value for name, value in tensors.items() if name.startswith("model.")}
            checkpoint.save(folder.best, checkpoint.Checkpoint(step, model, {"elbo": record["elbo"]}), keep=1)

    def measure(self, experiment: Experiment, weights: dict[str, Tensor]) -> dict[str, float]:
        """ELBO and its parts in nats per example, one sample of z each, the same noise at every look."""
        model = build_for(experiment, self.examples).to(self.device).eval()
        model.load_state_dict(weights)
        noise = torch.Generator().manual_seed(stream_key(0, 17))
        batches = (self.examples.batch(chosen) for chosen in self.indices.split(_BATCH))
        bound = measure_bound(model, experiment.objective, batches, noise)
        return {"elbo": bound.elbo, "reconstruction": bound.reconstruction, "kl": bound.kl}
