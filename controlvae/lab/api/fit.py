"""Training of user-supplied models from Python and the shell."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from controlvae.errors import UserError
from controlvae.lab.api.start import TrainingRequest, start_request
from controlvae.lab.config import Experiment
from controlvae.lab.custom.arguments import check_callbacks, check_names, whole_number
from controlvae.lab.custom.definition import Definition, Model, define
from controlvae.lab.custom.task import remember_task
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.ranks.launch import launch_function, should_launch
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, load_runs
from controlvae.lab.runs.user_code import is_code, load_definition
from controlvae.lab.training.repair.settings import Repair, check_repair
from controlvae.lab.training.resolve import Overrides
from controlvae.lab.training.runner import RunOptions, TrainingResult
from controlvae.lab.training.trackers import LoggerSpec
from controlvae.laws import Auto, Law


def fit(
    model: Model,
    dataset: Any,
    *,
    law: Law | None = None,
    target: float | Literal["auto"] | None = None,
    steps: int,
    run: str | Path | None = None,
    device: str = "auto",
    seeds: int = 1,
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    callbacks: Callable[[Any], None] | Sequence[Callable[[Any], None]] = (),
    logger: LoggerSpec = None,
    threads: str | int = "auto",
    progress: bool | Callable[[Any], None] = True,
    devices: int | None = None,
    sharded: bool = False,
    repair: bool | Repair = False,
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
        target: Set point in nats under `cv.Auto`, instead of a law. "auto" finds the best one while
            the model trains: see `lab.find_target`, whose `objective` and `rates` it takes. The
            result is then conditioned on the rate, and a copy of a module is trained.
        steps: Number of optimiser steps.
        run: Run folder. The default is `runs/NAME`, or `runs/NAME-2` and so on if it exists.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        seeds: Number of seeds. They train side by side, each in its own folder.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        callbacks: Function that receives `Progress` updates, or a list of them.
        logger: Further destinations of the log: "tensorboard", "wandb", "mlflow", "csv", a class or
            function of a run folder, an object with `write(record)` and `close()`, or a list.
        threads: Number of CPU threads, or `auto` to measure which is fastest on this machine now.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        devices: Processes that train each model together, one per GPU. Model and data are sent to
            them. Under torchrun, leave it out.
        sharded: Shard weights, gradients and moments over the processes with FSDP2. The module
            itself is then not trained, only a copy.
        repair: Take a run that goes wrong back, change what is wrong and resume it. `lab.Repair`
            sets how often.
        **settings: Further arguments of `define`, such as `likelihood`, `batch`, `learning_rate`,
            `optimiser`, `scheduler`, `clip`, `precision`, `ema_weights` and `validation`.

    Returns:
        The trained run, or a list of runs if there are several seeds.

    Raises:
        UserError: If model, data or a setting is not usable.
        RunError: If training fails, for example because the loss diverges.
        Interrupted: After Ctrl-C. The run is saved and `lab.resume` continues it.
    """
    if target == "auto":
        refuse_with_auto(
            repair=repair or None, law=law, devices=devices, logger=logger, time_limit=time_limit
        )
        finder = importlib.import_module("controlvae.lab.api.find_target")  # to the right of this
        quiet = {"device": device, "progress": progress, "threads": threads}
        found = finder.find_target(model, dataset, steps=steps, run=run, **quiet, **settings)
        return cast(LoadedRun, found.run)
    law = choose_law(law, target)
    parts = (device, time_limit, checkpoint_every, False, None, progress, logger, threads)
    repairs = check_repair(repair, devices=devices)
    functions = check_callbacks(callbacks)
    options = replace(RunOptions.parse(*parts), callbacks=functions, repair=repairs)
    seeds = whole_number("seeds", seeds, 1)
    if run is not None and not isinstance(run, str | PathLike):
        raise UserError(f"run must be the path of a new folder, got {run!r}; pass run='runs/mine'")
    check_names(settings, define)
    settings |= {"law": law, "steps": steps}
    if should_launch(devices):
        assert devices is not None
        chosen = {"run": run, "seeds": seeds, "sharded": sharded, "callbacks": callbacks}
        defined = define(model, dataset, **settings)
        sent = {"model": model, "dataset": dataset, "settings": settings, "parts": parts, **chosen}
        paths = launch_function(_fit_on_rank, sent, devices)
        recall_code(paths, defined)
        if len(paths) == 1 and not sharded:
            _take_weights(model, Path(paths[0]))
        return load_runs([RunFolder(Path(path)) for path in paths], device=options.device)
    defined = define(model, dataset, **settings)
    defined.task.in_place = True
    result = start_fit(defined, replace(options, sharded=sharded), run=run, seeds=seeds)
    return load_runs(result.folders, device=options.device)


def choose_law(law: Law | None, target: Any) -> Law:
    """Return the law of a training, from a law or a set point.

    Raises:
        UserError: If neither or both are given, or the set point is none.
    """
    if law is None and target is None:
        raise UserError(
            "law must be a law object, got None; pass e.g. law=cv.Auto(18.0), or target=18.0"
        )
    if law is not None and target is not None:
        raise UserError("pass either law=cv.Auto(18.0) or target=18.0, in nats")
    if law is not None:
        return law
    try:
        return Auto(target)
    except (TypeError, ValueError) as error:
        raise UserError(f"{error}; pass target=18.0 or target='auto'") from None


def refuse_with_auto(**arguments: Any) -> None:
    """Raise UserError if an argument is given that a search for the target does not take."""
    for name, value in arguments.items():
        if value is not None:
            raise UserError(f"{name} cannot be combined with target='auto'; leave it out")


def _fit_on_rank(
    model: Model,
    dataset: Any,
    settings: dict[str, Any],
    parts: tuple[Any, ...],
    callbacks: Sequence[Callable[[Any], None]],
    run: str | Path | None,
    seeds: int,
    sharded: bool,
) -> list[str]:
    """Train on one of several processes. Return the paths of the run folders."""
    options = RunOptions.parse(*parts)
    options = replace(options, callbacks=check_callbacks(callbacks), sharded=sharded)
    result = start_fit(define(model, dataset, **settings), options, run=run, seeds=seeds)
    return [str(folder.path) for folder in result.folders]


def recall_code(paths: Sequence[str], defined: Definition) -> None:
    """Let this process know the user's code of runs that other processes trained.

    Args:
        paths: Run folders.
        defined: Model and data of the runs.
    """
    for path in paths:
        remember_task(Path(path), defined.task)


def _take_weights(model: Model, folder: Path) -> None:
    """Give a module the weights that other processes trained, as if it had been trained here."""
    saved, _ = checkpoint.load_latest(RunFolder(folder).checkpoints)
    if isinstance(model, nn.Module) and saved is not None:
        model.load_state_dict(strip_prefix(saved.tensors, "model."))


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
    options = options.join_ranks(options.sharded)
    command = command or f"lab.fit({defined.task.code_name}, ...) in Python"
    request = TrainingRequest(
        lambda: resolve_source(defined, options), overrides, run, seeds, None, command
    )
    return start_request(request, options)


def resolve_source(
    source: str | Experiment | Definition, options: RunOptions
) -> tuple[str | Experiment, RunOptions]:
    """Return what to train, and options that carry the user's code if there is some.

    Args:
        source: Name of a preset, an experiment, a definition, or the place of one, such as
            `my_vae.py` or `my_vae.py:experiment`.
        options: How to execute the runs.

    Raises:
        UserError: If the code is missing or defines nothing to train.
    """
    if isinstance(source, str) and is_code(source):
        source = load_definition(source)
    if not isinstance(source, Definition):
        return source, options
    source.task.skips_corrupt = options.repair is not None and options.repair.custom
    experiment = source.experiment(options.device, options.display.note)
    return experiment, replace(options, task=source.task)


def source_name(source: str) -> str:
    """Return a name for folders: that of a preset, or of the user's file or module."""
    if not is_code(source):
        return source
    path = source.rpartition(":")[0] if source.rpartition(":")[0].endswith(".py") else source
    return Path(path).stem if path.endswith(".py") else path.replace(":", "-")
