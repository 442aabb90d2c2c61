"""Definitions: a user-supplied model, its data and all settings of its training, as one value."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from controlvae.errors import UserError
from controlvae.lab.config import Adam, Experiment
from controlvae.lab.config.experiment import Training
from controlvae.lab.custom.arguments import check_factories, real_number, whole_number
from controlvae.lab.custom.recognise_model import AnyLikelihood
from controlvae.lab.custom.task import CustomTask, make_task
from controlvae.lab.reading import shorten
from controlvae.laws import Law

Model = nn.Module | Callable[[], nn.Module]
_MAX_LOG_EVERY, _LOG_LINES = 500, 200
_VALIDATIONS = 20  # in a run, if their interval is not set


@dataclass(frozen=True)
class Definition:
    """A user-supplied model, its data, and how to train it: what `define` returns.

    `controlvae train FILE.py` trains the one that a file calls `experiment`.
    """

    task: CustomTask
    law: Law
    training: Training
    adam: Adam
    name: str = "custom"

    def experiment(
        self, device: torch.device, note: Callable[[str], None] = lambda line: None
    ) -> Experiment:
        """Return the experiment that describes this definition, after trying one batch.

        Args:
            device: Device to train on.
            note: Receives what was inferred.
        """
        arguments = (self.name, self.law, self.training, self.adam, device, note)
        try:
            return self.task.describe(*arguments)
        except UserError as error:
            if not getattr(self.task.data.data, "whole_batches", False):
                raise
            raise UserError(
                f"{error}; the DataLoader has batch_size=None, so its data set must return whole "
                "batches: set batch_size if it returns examples"
            ) from error
        except ValueError as error:  # settings that are valid one by one but not together
            raise UserError(str(error)) from None


def define(
    model: Model,
    dataset: Any,
    *,
    law: Law,
    steps: int,
    name: str | None = None,
    likelihood: AnyLikelihood | None = None,
    inputs: Any = None,
    batch: int | None = None,
    learning_rate: float = 1e-3,
    optimiser: Any = None,
    scheduler: Any = None,
    clip: float | None = None,
    precision: str = "tf32",
    ema_weights: float = 0.0,
    validation: Any = 0,
    validate_every: int | None = None,
    log_every: int | None = None,
    seed: int = 1,
    delayed: bool = False,
    workers: int | None = None,
    cache: bool = False,
    factors: Any = None,
    capture: bool = True,
    compile: bool | None = None,
    location: str = "",
) -> Definition:
    """Define the training of a user-supplied model without starting it.

    Args:
        model: A module, or a class or function that returns one.
        dataset: Data in any form that `fit` takes, or a function that returns it.
        law: Law of the KL weight.
        steps: Number of optimiser steps.
        name: Name of the run. The default is that of the model's class.
        likelihood: Likelihood of the reconstruction for models with `decode`: "bernoulli",
            "squared-error", "categorical", `lab.Gaussian(variance)`, `lab.Gaussian(learnt=True)`,
            or a function of the decoder's output and x. None infers it from the data.
        inputs: Key, position or function that selects what `encode` takes from a batch.
        batch: Number of examples in a batch. The default is that of a loader, else 64.
        learning_rate: Learning rate of Adam, or of the optimiser class.
        optimiser: A `torch.optim` class, or a function from parameters to an optimiser.
        scheduler: Function from the optimiser to a learning-rate scheduler, stepped every step.
        clip: Largest norm of the gradient over all weights.
        precision: Products on a GPU in "fp32", "tf32" or "bf16". A CPU computes in the type of the
            weights.
        ema_weights: Decay of a moving average of the weights, which evaluation uses.
        validation: Number of examples to hold out, their fraction if below 1, or a data set.
        validate_every: Steps between validations.
        log_every: Steps averaged into one line of the log.
        seed: Seed of initial weights, batches and noise.
        delayed: Weight a batch by the KL of the batches before it.
        workers: Processes that fetch batches of a data set. None chooses.
        cache: Keep a data set in memory after reading it once. Its transforms run once.
        factors: Ground-truth factors of the examples, (count, factors), for disentanglement scores.
        capture: Capture steps as CUDA graphs on a GPU.
        compile: Compile the model with `torch.compile`, which takes up to a minute. None compiles a
            single model on a GPU that is trained for at least 100,000 steps.
        location: File and name of the code, as `controlvae train` records it.

    Raises:
        UserError: If a setting or the data is not usable.
    """
    _check_model(model)
    if not isinstance(law, Law):
        wish = f"cv.Auto({law:g})" if isinstance(law, int | float) else "cv.Auto(18.0)"
        raise UserError(f"law must be a law object, got {law!r}; pass e.g. law={wish}")
    if callable(dataset) and not hasattr(dataset, "__len__") and not hasattr(dataset, "__iter__"):
        dataset = dataset()
    steps, seed = whole_number("steps", steps, 1), whole_number("seed", seed, 0)
    batch = None if batch is None else whole_number("batch", batch, 1)
    workers = None if workers is None else whole_number("workers", workers, 0)
    log_every = None if log_every is None else whole_number("log_every", log_every, 1)
    if validate_every is not None:
        validate_every = whole_number("validate_every", validate_every, 0)
    learning_rate = real_number("learning_rate", learning_rate)
    clip = None if clip is None else real_number("clip", clip, "a positive number or None")
    ema_weights = real_number("ema_weights", ema_weights, "a number in [0, 1)")
    check_factories(optimiser, scheduler)
    share, held_out = _read_validation(validation)
    task = make_task(
        model,
        dataset,
        batch=batch,
        validation=held_out,
        workers=workers,
        cache=cache,
        likelihood=likelihood,
        inputs=inputs,
        optimiser=optimiser,
        scheduler=scheduler,
        factors=factors,
        capture=capture,
        compile=compile,
        location=location,
        first_seed=seed,
    )
    try:
        log_every = log_every or max(1, min(_MAX_LOG_EVERY, steps // _LOG_LINES))
        if share and validate_every is None:
            validate_every = max(1, steps // _VALIDATIONS // log_every) * log_every
        training = Training(
            steps=steps,
            batch=task.data.batch,
            seed=seed,
            log_every=log_every,
            precision=precision,  # type: ignore[arg-type]
            delayed=delayed,
            validation=share,
            validate_every=validate_every or 0,
            ema_weights=ema_weights,
        )
        adam = Adam(rate=learning_rate, clip=clip)
    except (ValueError, TypeError) as error:
        text = str(error)
        raise UserError(f"learning_{text}" if text.startswith("rate ") else text) from None
    return Definition(task, law, training, adam, name or _model_name(model))


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module) and not callable(model):
        raise UserError(
            f"model must be a torch.nn.Module, or a class or function that returns one, "
            f"got {model!r}"
        )


def _read_validation(validation: Any) -> tuple[int | float, Any]:
    """Return the share of examples to hold out, and data for validation or None."""
    wanted = "validation must be a number of examples, a fraction below 1, or a data set"
    if validation is None:
        return 0, None
    if isinstance(validation, bool) or (
        isinstance(validation, str | Path) and not os.path.exists(validation)
    ):
        raise UserError(f"{wanted}, got {shorten(repr(validation))}; try validation=0.1")
    if not isinstance(validation, int | float):
        return 1, validation
    if not (0 <= validation < 1 or (validation > 0 and validation % 1 == 0)):
        raise UserError(f"{wanted}, got {validation!r}; try validation=0.1")
    return validation if validation < 1 else int(validation), None


def _model_name(model: Any) -> str:
    name = getattr(model, "__name__", type(model).__name__)
    return "custom" if name == "<lambda>" else name.lower()
