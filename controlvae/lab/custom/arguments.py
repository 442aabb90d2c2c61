"""Checks of the arguments of `lab.fit`, each with one line that says what was expected."""

import inspect
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.reading import shorten

_LARGEST_WHOLE_NUMBER = 1_000_000_000_000
# Names that other libraries use for the same setting.
_OTHER_NAMES = {
    "lr": "learning_rate",
    "optimizer": "optimiser",
    "batch_size": "batch",
    "num_workers": "workers",
    "epochs": "steps",
    "max_steps": "steps",
    "grad_clip": "clip",
    "val": "validation",
}


def whole_number(name: str, value: Any, lowest: int) -> int:
    """Return an argument as an int. Whole floats such as 1e5 are accepted.

    Args:
        name: Name of the argument, for messages.
        value: What was passed.
        lowest: Smallest number allowed.

    Raises:
        UserError: If it is not a whole number, or too small.
    """
    number: int | None = None
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    elif not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is not None and number > _LARGEST_WHOLE_NUMBER:
        raise UserError(f"{name} must be at most {_LARGEST_WHOLE_NUMBER:,}, got {shorten(value)}")
    if number is None or number < lowest:
        raise UserError(
            f"{name} must be a whole number of at least {lowest}, got {shorten(repr(value))}"
        )
    return number


def real_number(name: str, value: Any, wanted: str = "a positive number") -> float:
    """Return an argument as a float. Its range is left to the settings that receive it.

    Args:
        name: Name of the argument, for messages.
        value: What was passed.
        wanted: What it should be, in words.

    Raises:
        UserError: If it is not a number.
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} must be {wanted}, got {shorten(repr(value))}")
    return number


def check_names(settings: Iterable[str], function: Callable[..., Any]) -> None:
    """Raise UserError if a function has no argument of one of these names.

    Args:
        settings: Names that were passed.
        function: Function that they are passed to.
    """
    known = [name for name in inspect.signature(function).parameters if name != "location"]
    for name in settings:
        if name in known:
            continue
        if name in _OTHER_NAMES:
            raise UserError(f"no argument {name!r}; it is called {_OTHER_NAMES[name]!r} here")
        raise unknown_name_error("argument", name, known)


def check_factories(optimiser: Any, scheduler: Any) -> None:
    """Raise UserError if optimiser or scheduler are objects instead of functions that make them.

    Args:
        optimiser: Argument `optimiser` of `lab.fit`.
        scheduler: Argument `scheduler` of `lab.fit`.
    """
    if optimiser is not None and (isinstance(optimiser, Optimizer) or not callable(optimiser)):
        name = type(optimiser).__name__ if isinstance(optimiser, Optimizer) else "AdamW"
        raise UserError(
            "optimiser must be a torch.optim class, or a function from parameters to an "
            f"optimiser, got {_name_object(optimiser, Optimizer)}; pass torch.optim.{name}, or "
            f"lambda parameters: torch.optim.{name}(parameters, lr=1e-3)"
        )
    if scheduler is not None and (isinstance(scheduler, LRScheduler) or not callable(scheduler)):
        found = isinstance(scheduler, LRScheduler)
        name = f"{type(scheduler).__name__}(optimiser, ...)" if found else "ConstantLR(optimiser)"
        raise UserError(
            "scheduler must be a function from the optimiser to a scheduler, got "
            f"{_name_object(scheduler, LRScheduler)}; pass lambda optimiser: {name}"
        )


def check_callbacks(callbacks: Any) -> tuple[Callable[[Any], None], ...]:
    """Return callbacks as a tuple.

    Raises:
        UserError: If they are neither a function nor a list of functions.
    """
    if callbacks is None:
        return ()
    if callable(callbacks):
        return (callbacks,)
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise UserError(
            f"callbacks must be a function of a Progress update, or a list of them, got "
            f"{callbacks!r}; write callbacks=[function]"
        )
    return tuple(callbacks)


def _name_object(value: Any, kind: type) -> str:
    return f"the object {type(value).__name__}(...)" if isinstance(value, kind) else repr(value)
