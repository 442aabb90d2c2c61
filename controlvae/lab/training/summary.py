"""Messages at the start and the end of training."""

import numpy as np

from controlvae.diagnostics.collapse import describe_used_latents
from controlvae.lab.config import CustomModel, Experiment, describe_likelihood
from controlvae.lab.custom.task import CustomTask
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.data.dataset import BinaryImages, Dataset, holds_images
from controlvae.lab.data.registry import validation_settings
from controlvae.lab.data.validation_split import count_validation_examples
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.training.loop import Run
from controlvae.lab.training.validation import Validator


def describe_setup(
    experiment: Experiment, examples: Dataset, validator: Validator | None
) -> list[str]:
    """Return lines about the data, the validation split, the likelihood and the factors.

    Args:
        experiment: Experiment to train.
        examples: Its training examples.
        validator: Its validator, if it validates.
    """
    shape = "x".join(map(str, examples.shape))
    size = f"{len(examples):,} examples"
    size += f" of {shape}" if holds_images(examples) else ""
    split = _describe_validation(experiment, examples, validator)
    likelihood = experiment.objective.likelihood
    lines = [
        f"data: {examples.source}; {examples.split}; {size}{split}",
        f"reconstruction: {describe_likelihood(likelihood)}",
    ]
    if examples.factors is not None:
        lines.append(f"factors: {_describe_factors(examples.factors, examples)}")
    if isinstance(examples, BinaryImages) and likelihood != "bernoulli":
        lines.append(
            "note: these images are black and white; "
            "objective.likelihood=bernoulli is their likelihood"
        )
    return lines


def describe_custom_setup(
    experiment: Experiment, task: CustomTask, trainer: CustomTrainer, validator: Validator | None
) -> list[str]:
    """Return lines about a user-supplied model and its data.

    Args:
        experiment: Experiment to train.
        task: The user's model and data.
        trainer: Trainer of the first model.
        validator: Its validator, if it validates.
    """
    model = experiment.model
    assert isinstance(model, CustomModel)
    latents = "x".join(map(str, model.latent_shape)) or "not shown"
    split = "" if validator is None else f", {len(validator.indices):,} for validation"
    lines = [
        f"model: {model.code}; {model.parameters:,} parameters; z: {latents}",
        f"data: {task.data.data.source}{split}; batches of {experiment.training.batch}",
        f"reconstruction: {describe_likelihood(experiment.objective.likelihood)}",
    ]
    workers = getattr(trainer.feed, "workers", 0)
    if workers:
        lines.append(
            f"batches are fetched by {workers} worker processes; cache=True keeps the data in "
            "memory, if it has no random transforms"
        )
    return lines


def describe_end(run: Run) -> str:
    """Return the end of a run by its last log line: `KL 4.08 nats (target 4.00), 12 of 16 ...`.

    The accuracy of a critic is included, because its estimate is hard to judge without it.
    """
    record, controlled = run.folder.last_record(), run.experiment.controlled_quantity
    assert record is not None
    latents = record["kl_per_latent"]
    target = "" if record["target"] is None else f" (target {format_nats(record['target'])})"
    accuracy = record.get("critic_accuracy")
    critic = "" if accuracy is None else f", the critic right in {accuracy:.0%}"
    value = ""
    if controlled != "kl" and (target or critic):
        value = f", {run.experiment.controlled_label} {format_nats(record[controlled])}"
    used = f"{describe_used_latents(latents)} latents used"
    return f"KL {record['kl']:.2f} nats{value}{target}{critic}, {used}"


def _describe_validation(
    experiment: Experiment, examples: Dataset, validator: Validator | None
) -> str:
    validation = experiment.training.validation
    if not validation:
        return ""
    unused = "" if validator else ", not measured: set training.validate_every"
    if validation_settings(experiment.data) is not None:
        size = ""
        if validator:
            size = f"{len(validator.indices):,} of {len(validator.examples):,} in "
        return f", {size}its validation split for validation{unused}"
    count = count_validation_examples(len(examples), validation)
    return f", {len(examples) - count:,} for training and {count:,} for validation{unused}"


def _describe_factors(table: np.ndarray, examples: Dataset) -> str:
    """Return names and numbers of values, such as `shape (3 kinds), scale (6 values)`."""
    names, counts = examples.factor_names, [len(np.unique(column)) for column in table.T]
    kinds = ["kinds" if name in examples.unordered else "values" for name in names]
    rows = zip(names, counts, kinds, strict=True)
    return ", ".join(f"{name} ({count} {kind})" for name, count, kind in rows)
