"""Validation during training: measures held-out examples and keeps the best model."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.custom.measure import measure_losses, weights_of
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.registry import load_dataset, validation_settings
from controlvae.lab.data.validation_split import count_validation_examples, split_train_validation
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.io import write_text
from controlvae.lab.models import build
from controlvae.lab.models.dataset_elbo import measure_elbo
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder


class Validator:
    """Validation examples of runs that train side by side, on their device.

    They come from the data's own validation split if it has one, else from the training set.

    Args:
        experiments: Experiments that share data and training settings.
        examples: Training examples.
        device: Device of the models.
        root: Data folder that is searched first.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        examples: Dataset,
        device: torch.device,
        root: Path | None = None,
    ) -> None:
        training, split = experiments[0].training, validation_settings(experiments[0].data)
        self.every, self.trained, self.device = training.validate_every, examples, device
        self.examples = examples if split is None else load_dataset(split, root).to(device)
        count = len(self.examples)
        if split is not None and count_validation_examples(count, training.validation) >= count:
            self.indices = torch.arange(count, device=device)
        else:
            self.indices = split_train_validation(count, training.validation)[1].to(device)

    def due(self, step: int) -> bool:
        """Return True if this step is validated."""
        return step % self.every == 0

    def look(
        self, folder: RunFolder, experiment: Experiment, step: int, tensors: dict[str, Tensor]
    ) -> None:
        """Measure a snapshot, append it to `validation.jsonl`, and keep it if it is the best.

        Args:
            folder: Run folder.
            experiment: Experiment of the run.
            step: Step of the snapshot.
            tensors: Snapshot of the model.
        """
        earlier = [record for record in folder.validations() if record["step"] < step]
        record = {"step": step, **self.measure(experiment, strip_prefix(tensors, "model."))}
        lines = [json.dumps(line) + "\n" for line in [*earlier, record]]
        write_text(folder.validation_file, "".join(lines))
        if record["elbo"] >= _best_elbo(folder, step):
            kept = ("model.", "ema.")
            model = {name: value for name, value in tensors.items() if name.startswith(kept)}
            # The previous best is kept too: a crash may take these steps back.
            best = checkpoint.Checkpoint(step, model, {"elbo": record["elbo"]})
            checkpoint.save(folder.best, best)

    def measure(self, experiment: Experiment, weights: dict[str, Tensor]) -> dict[str, float]:
        """Return ELBO, reconstruction and KL in nats per example.

        Each example has one sample of z, with the same noise at every call.
        """
        model = build(experiment, self.trained).to(self.device).eval()
        optimise_layers(model)
        model.load_state_dict(weights)
        noise = torch.Generator().manual_seed(stream_key(0, 17))
        batches = self.examples.batches(self.indices)
        bound = measure_elbo(model, experiment.objective.likelihood, batches, noise)
        return {"elbo": bound.elbo, "reconstruction": bound.reconstruction, "kl": bound.kl}


class CustomValidator(Validator):
    """Validation of user-supplied models, which are measured where they are trained.

    Args:
        trainers: Trainers of the models.
        examples: Examples that hold the validation split.
        indices: Indices of the validation examples.
    """

    def __init__(
        self, trainers: Sequence[CustomTrainer], examples: UserExamples, indices: Tensor
    ) -> None:
        self.trainers, self.indices = trainers, indices
        self.user_examples = examples
        self.every = trainers[0].experiment.training.validate_every

    def measure(self, experiment: Experiment, weights: dict[str, Tensor]) -> dict[str, float]:
        """Return ELBO, reconstruction and KL in nats per example.

        A moving average of the weights is measured if there is one.

        Args:
            experiment: Experiment of the model.
            weights: Weights of the model, which its trainer holds too.
        """
        trainer = next(one for one in self.trainers if one.experiment == experiment)
        with weights_of(trainer.vae.module, trainer.average):
            found = measure_losses(trainer.vae, self.user_examples, self.indices)
        return {"elbo": found.elbo, "reconstruction": found.reconstruction, "kl": found.kl}


def _best_elbo(folder: RunFolder, step: int) -> float:
    """Return the ELBO of the best weights on disk from before a step.

    A validation record whose weights are gone does not count.
    """
    try:
        saved, _ = checkpoint.load_latest(folder.best, at_most=step - 1)
    except UserError:  # all of them are corrupt
        return -math.inf
    return -math.inf if saved is None else float(saved.numbers["elbo"])
