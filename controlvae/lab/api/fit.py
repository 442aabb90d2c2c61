"""Training of user-supplied models from Python: `fit` and `define`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from controlvae.errors import UserError
from controlvae.lab.config import Adam, Experiment
from controlvae.lab.config.experiment import Training
from controlvae.lab.custom.recognise_model import AnyLikelihood
from controlvae.lab.custom.task import CustomTask, make_task
from controlvae.lab.runs.loaded import LoadedRun, load_runs
from controlvae.lab.training import runner
from controlvae.lab.training.resolve import Overrides
from controlvae.lab.training.run_setup import plan_training
from controlvae.lab.training.runner import RunOptions, TrainingResult
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
        except ValueError as error:  # settings that are valid one by one but not together
            raise UserError(str(error)) from None


def fit(
    model: Model,
    dataset: Any,
    *,
    law: Law,
    steps: int,
    run: str | Path | None = None,
    device: str = "auto",
    seeds: int = 1,
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    callbacks: Sequence[Callable[[Any], None]] = (),
    tensorboard: bool = False,
    progress: bool | Callable[[Any], None] = True,
    **settings: Any,
) -> LoadedRun | list[LoadedRun]:
    """Train any VAE with its KL under control.

    >>> run = lab.fit(model, dataset, law=cv.Auto(18.0), steps=20_000, run="runs/mine")

    The model has `encode(x)`, which returns (mean, log_variance) or a distribution, and
    `decode(z)`; or `terms(batch, noise)`, which returns reconstruction and KL per example; or a
    `forward` that returns `loss` and `kl`. Models of diffusers and pythae work as they are. One
    batch is tried before anything is written.

    Args:
        model: A module, which is trained in place, or a class or function that returns one.
        dataset: Arrays, tensors, a `Dataset` or `DataLoader`, a Hugging Face dataset, a data frame,
            a folder of images, or settings of a built-in data set such as `CIFAR10(size=32)`.
        law: Law of the KL weight, such as `cv.Auto(18.0)`.
        steps: Number of optimiser steps.
        run: Run folder. The default is `runs/NAME`, or `runs/NAME-2` and so on if it exists.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        seeds: Number of seeds. They train side by side, each in its own folder.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        callbacks: Functions that receive `Progress` updates.
        tensorboard: Write TensorBoard files.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        **settings: Further arguments of `define`, such as `likelihood`, `batch`, `learning_rate`,
            `optimiser`, `scheduler`, `clip`, `precision`, `ema_weights` and `validation`.

    Returns:
        The trained run, or a list of runs if there are several seeds.

    Raises:
        UserError: If model, data or a setting is not usable.
        RunError: If training fails, for example because the loss diverges.
        Interrupted: After Ctrl-C. The run is saved and `lab.resume` continues it.
    """
    options = RunOptions.parse(device, time_limit, checkpoint_every, tensorboard, None, progress)
    options = replace(options, callbacks=tuple(callbacks))
    defined = define(model, dataset, law=law, steps=steps, **settings)
    result = start_fit(defined, options, run=run, seeds=seeds)
    return load_runs(result.folders, device=options.device)


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
        location: File and name of the code, as `controlvae train` records it.

    Raises:
        UserError: If a setting or the data is not usable.
    """
    _check_model(model)
    if not isinstance(law, Law):
        raise UserError(f"law must be a law such as cv.Auto(18.0), got {law!r}")
    if callable(dataset) and not hasattr(dataset, "__len__") and not hasattr(dataset, "__iter__"):
        dataset = dataset()
    held_out = None if isinstance(validation, int | float) else validation
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
        location=location,
    )
    share = validation if held_out is None else 1
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
        raise UserError(str(error)) from None
    return Definition(task, law, training, adam, name or _model_name(model))


def start_fit(
    defined: Definition,
    options: RunOptions,
    *,
    run: str | Path | None = None,
    seeds: int = 1,
    overrides: Overrides = None,
    command: str | None = None,
) -> TrainingResult:
    """Train a definition without loading the result.

    Args:
        defined: Model, data and settings.
        options: How to execute the runs.
        run: Run folder.
        seeds: Number of seeds.
        overrides: Settings to change, such as `{"control.target": 20}`.
        command: Shell command that repeats the training, for `experiment.json`.
    """
    if seeds < 1:
        raise UserError(f"seeds must be at least 1, got {seeds}")
    experiment = defined.experiment(options.device, options.display.note)
    plan = plan_training(
        experiment,
        overrides,
        run=None if run is None else Path(run),
        seeds=seeds,
        note=options.display.note,
    )
    model = plan.experiments[0].model
    command = command or f"lab.fit({getattr(model, 'code', '')}, ...) in Python"
    return runner.start_runs(plan, replace(options, task=defined.task), command)


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module) and not callable(model):
        raise UserError(
            f"model must be a torch.nn.Module, or a class or function that returns one, "
            f"got {model!r}"
        )


def _model_name(model: Any) -> str:
    name = getattr(model, "__name__", type(model).__name__)
    return "custom" if name == "<lambda>" else name.lower()
