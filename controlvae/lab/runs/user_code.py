"""The user's code behind a run folder: found in this process, or imported if it is trusted."""

import importlib
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from controlvae.errors import UserError
from controlvae.lab.config import CustomData, CustomModel, Experiment, settings_name
from controlvae.lab.custom.definition import Definition, define
from controlvae.lab.custom.task import CustomTask, make_task, recall_task, remember_task
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.data import load_run_data
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Constant

# Environment variable that allows to import the code that run folders name.
TRUST_VARIABLE = "CONTROLVAE_TRUST_CODE"
_DEFAULT_STEPS = 10_000


class UntrustedCodeError(UserError):
    """A run needs the user's code, and nobody allowed to import it."""


def find_task(folder: RunFolder, *, trust_code: bool = False) -> CustomTask:
    """Return the user's model and data of a run.

    Args:
        folder: Run folder of a user-supplied model.
        trust_code: Import and execute the file that the run folder names.

    Raises:
        UntrustedCodeError: If this process does not have the code, and may not import it.
        UserError: If the code is missing or defines something else.
    """
    if (task := recall_task(folder.path)) is not None:
        return task
    location = str(folder.manifest().get("code", ""))
    settings = folder.experiment().model
    name = settings.code if isinstance(settings, CustomModel) else ""
    if not location:
        raise UntrustedCodeError(
            f"{folder.path} holds a model that was passed from Python ({name}); pass it again: "
            "lab.resume(run, model, dataset) or lab.load_run(run, model=model, dataset=dataset)"
        )
    if not trust_code and not os.environ.get(TRUST_VARIABLE):
        raise UntrustedCodeError(
            f"{folder.path} needs the code in {location}, which is not executed unasked; add "
            "--trust-code, or in Python trust_code=True"
        )
    defined = load_definition(location)
    if not isinstance(defined, Definition):
        raise UserError(f"{location} defines a built-in model, but {folder.path} trains {name}")
    remember_task(folder.path, defined.task)
    return defined.task


def supply_code(
    folder: RunFolder, model: Any, dataset: Any, root: Path | None = None, **settings: Any
) -> None:
    """Let this process know the user's model and data of a run.

    Args:
        folder: Run folder of a user-supplied model.
        model: Module, class or function.
        dataset: Data in any form. None loads data of the lab that the experiment names.
        root: Data folder that is searched first.
        **settings: Further code that `lab.fit` was called with.

    Raises:
        UserError: If the data is missing, or the run trains a built-in model.
    """
    experiment = folder.experiment()
    if not isinstance(experiment.model, CustomModel):
        raise UserError(
            f"{folder.path} trains the built-in {settings_name(type(experiment.model))}; "
            "it takes no model="
        )
    if dataset is None and not isinstance(experiment.data, CustomData):
        saved, _ = checkpoint.load_latest(folder.checkpoints)
        fingerprint = "" if saved is None else saved.numbers.get("data", "")
        dataset = load_run_data(folder, experiment, fingerprint, root).examples
    remember_task(folder.path, make_task(model, dataset, experiment, **settings))


def is_code(source: str) -> bool:
    """Return whether a text names a file or module of the user instead of a preset."""
    return source.endswith(".py") or ":" in source


def load_definition(location: str) -> Definition | Experiment:
    """Import a file or module, and return the definition or experiment that it contains.

    Without a name it is `experiment`, or a `model` and a `dataset`, with `law` and `steps` if they
    are there. Functions are called.

    Args:
        location: `FILE.py:NAME`, `package.module:NAME`, or the same without a name.

    Raises:
        UserError: If the file is missing, fails, or defines nothing to train.
    """
    path, name = _split_location(location)
    module = _import(path)
    place = f"{path}:{name or 'experiment'}"
    if not name and not hasattr(module, "experiment") and hasattr(module, "model"):
        return _with_location(_define_from(module, path), path)
    found = getattr(module, name or "experiment", None)
    if callable(found) and not isinstance(found, Definition | Experiment | nn.Module):
        try:
            found = found()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{place}() failed: {type(error).__name__}: {error}") from error
    if isinstance(found, Experiment):
        return found
    if not isinstance(found, Definition):
        raise UserError(
            f"{path} must define {name or 'experiment'} = lab.define(model, dataset, law=..., "
            f"steps=...), an Experiment, or a function that returns one; got {found!r}"
        )
    return _with_location(found, place)


def _split_location(location: str) -> tuple[str, str]:
    """Split `FILE.py:NAME`. A drive letter is part of the file."""
    path, separator, name = location.rpartition(":")
    if not separator or "/" in name or "\\" in name:
        return location, ""
    return path, name


def _define_from(module: ModuleType, path: str) -> Definition:
    """Return the definition of a module with a model and a dataset."""
    if not hasattr(module, "dataset"):
        raise UserError(f"{path} defines a model but no dataset; add dataset = ...")
    law = getattr(module, "law", Constant(1.0))
    steps = getattr(module, "steps", _DEFAULT_STEPS)
    return define(module.model, module.dataset, law=law, steps=steps)


def _with_location(defined: Definition, place: str) -> Definition:
    """Return the definition with the absolute place of its code."""
    path, name = _split_location(place)
    if path.endswith(".py"):
        path = str(Path(path).expanduser().resolve())
    task = replace(defined.task, location=f"{path}:{name}" if name else path)
    stem = Path(path).stem if path.endswith(".py") else path.rpartition(".")[2]
    return replace(defined, task=task, name=stem)


def _import(path: str) -> ModuleType:
    try:
        if not path.endswith(".py"):
            return importlib.import_module(path)
        file = Path(path).expanduser().resolve()
        if not file.is_file():
            raise UserError(f"no file {path}")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module  # workers of a loader import it by this name
        sys.path.insert(0, str(file.parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(file.parent))
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} failed: {type(error).__name__}: {error}") from error
    return module


def check_same_model(folder: RunFolder, module: nn.Module) -> None:
    """Raise UserError if a model does not have the weights of a run's newest checkpoint.

    Args:
        folder: Run folder, which may have no checkpoint yet.
        module: The user's model.
    """
    if not folder.experiment_file.is_file():
        return
    saved, _ = checkpoint.load_latest(folder.checkpoints)
    if saved is None:
        return
    before = {n: tuple(v.shape) for n, v in strip_prefix(saved.tensors, "model.").items()}
    now = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    if before == now:
        return
    lines = [f"{name} is new" for name in now if name not in before]
    lines += [f"{name} is gone" for name in before if name not in now]
    lines += [
        f"{name} was {before[name]} and is {now[name]}"
        for name in now
        if name in before and before[name] != now[name]
    ]
    more = f", and {len(lines) - 3} more" if len(lines) > 3 else ""
    raise UserError(
        f"the model has changed since {folder.path} was trained: {', '.join(lines[:3])}{more}; "
        "pass the model it was trained with, or train in another folder"
    )
