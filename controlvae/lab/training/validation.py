"""Looks at examples kept out of training while it goes on, and keeps the model that did best on them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.data.dataset import Dataset, stream_key
from controlvae.lab.data.registry import load_dataset, validation_settings
from controlvae.lab.data.validation_split import count_validation_examples, split_indices
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.io import write_text
from controlvae.lab.models import build
from controlvae.lab.models.dataset_elbo import measure_elbo
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder


class Validator:
    """The held-out examples of runs side by side, on the device they train on.

    They are of the data's own validation part where it has one, else some of those a run would be trained on.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        examples: Dataset,
        device: torch.device,
        root: Path | None = None,
    ) -> None:
        training, own = experiments[0].training, validation_settings(experiments[0].data)
        self.every, self.trained, self.device = training.validate_every, examples, device
        self.examples = examples if own is None else load_dataset(own, root).to(device)
        if own is not None and count_validation_examples(
            len(self.examples), training.validation
        ) >= len(self.examples):
            self.indices = torch.arange(len(self.examples), device=device)
        else:
            self.indices = split_indices(len(self.examples), training.validation)[1].to(device)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def look(
        self, folder: RunFolder, experiment: Experiment, step: int, tensors: dict[str, Tensor]
    ) -> None:
        """Measures a snapshot, writes a line into `validation.jsonl`, and keeps the model if it is the best so far."""
        before = [record for record in folder.validations() if record["step"] < step]
        record = {"step": step, **self.measure(experiment, strip_prefix(tensors, "model."))}
        write_text(
            folder.validation_file, "".join(json.dumps(line) + "\n" for line in [*before, record])
        )
        if record["elbo"] >= _kept(folder, step):
            model = {name: value for name, value in tensors.items() if name.startswith("model.")}
            # The one before stays: this look may be of steps that a crash takes back.
            checkpoint.save(
                folder.best, checkpoint.Checkpoint(step, model, {"elbo": record["elbo"]})
            )

    def measure(self, experiment: Experiment, weights: dict[str, Tensor]) -> dict[str, float]:
        """ELBO and its parts in nats per example, one sample of z each, the same noise at every look."""
        model = build(experiment, self.trained).to(self.device).eval()
        optimise_layers(model)
        model.load_state_dict(weights)
        noise = torch.Generator().manual_seed(stream_key(0, 17))
        bound = measure_elbo(
            model, experiment.objective.likelihood, self.examples.batches(self.indices), noise
        )
        return {"elbo": bound.elbo, "reconstruction": bound.reconstruction, "kl": bound.kl}


def _kept(folder: RunFolder, step: int) -> float:
    """The ELBO of the best weights from before that are there; a line whose weights are gone counts for nothing."""
    try:
        saved, _ = checkpoint.load(folder.best, at_most=step - 1)
    except UserError:  # all of them are damaged
        return -math.inf
    return -math.inf if saved is None else float(saved.numbers["elbo"])
