"""Search spaces: the values that a search tries for each setting."""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config import Experiment, override
from controlvae.lab.config.overrides import split_values

Value = str | int | float
SpaceSource = Mapping[str, Any] | Sequence[str]
_FORMS = "values such as 32,64,128, or a range LOW:HIGH, LOW:HIGH:log or LOW:HIGH:STEP"


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included.

    Attributes:
        low: Lower end.
        high: Upper end.
        log: Draw evenly in the logarithm.
        step: Distance between two values, or None for no grid.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def is_whole(self) -> bool:
        """True if the setting takes whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        ends = f"{self.low!r}:{self.high!r}"
        return f"{ends}:log" if self.log else ends if self.step is None else f"{ends}:{self.step!r}"


@dataclass(frozen=True)
class Choice:
    """Values to choose from, as texts that `--set` takes."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.values)


Dimension = Range | Choice


def parse_space(base: Experiment, space: SpaceSource) -> dict[str, Dimension]:
    """Return the dimensions of a search space by the path of their setting.

    The ends of a range and all values of a choice are tried on the experiment.

    Args:
        base: Experiment whose settings are varied.
        space: Texts such as `control.target=4:20`, `optimiser.rate=1e-4:1e-2:log` or
            `training.batch=32,64`. Or a mapping from paths to such texts without the path, tuples
            such as `(4, 20)` and `(1e-4, 1e-2, "log")` for ranges, and lists for choices.

    Raises:
        UserError: If a setting does not exist, or a value does not fit it.
    """
    found: dict[str, Dimension] = {}
    for path, text in _as_texts(space):
        if path in found:
            raise UserError(f"--vary names a setting twice: {path}")
        dimension = _parse_range(base, path, text)
        found[path] = dimension or _parse_choice(base, path, text)
    if not found:
        raise UserError("a search needs a setting to vary, such as --vary control.target=4:20")
    return found


def make_assignments(settings: Mapping[str, Value]) -> list[str]:
    """Return the values of a trial as `part.field=value` texts."""
    return [
        f"{path}={value if isinstance(value, str) else repr(value)}"
        for path, value in settings.items()
    ]


def describe_values(settings: Mapping[str, Value]) -> str:
    """Format the values of a trial on one line: `target=11.3, rate=0.00042`."""
    names = short_names(settings)
    return ", ".join(f"{names[path]}={format_value(value)}" for path, value in settings.items())


def short_names(paths: Mapping[str, Any]) -> dict[str, str]:
    """Return the last part of each path, or the whole path where two would be the same."""
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 else path
        for path, name in zip(paths, last, strict=True)
    }


def format_value(value: Value) -> str:
    """Return a value of a setting with at most four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_texts(space: SpaceSource) -> list[tuple[str, str]]:
    """Return each setting with its values as a text."""
    if isinstance(space, str):
        space = [space]
    if isinstance(space, Mapping):
        return [(path, _value_text(path, value)) for path, value in space.items()]
    pairs = []
    for text in space:
        path, equals, values = text.partition("=")
        if not equals or not path.strip() or not values.strip():
            raise UserError(f"--vary takes part.field= and {_FORMS}, got {text!r}")
        pairs.append((path.strip(), values.strip()))
    return pairs


def _value_text(path: str, value: Any) -> str:
    match value:
        case str():
            return value
        case tuple() if len(value) in (2, 3):
            return ":".join(part if isinstance(part, str) else repr(part) for part in value)
        case list():
            return ",".join(part if isinstance(part, str) else repr(part) for part in value)
    raise UserError(
        f"{path}: expected a range such as (4, 20) or (1e-4, 1e-2, 'log'), a list of values, "
        f"or a text, got {value!r}"
    )


def _parse_range(base: Experiment, path: str, text: str) -> Range | None:
    """Return a range, or None if the text has not the form of one."""
    pieces = [piece.strip() for piece in text.split(":")]
    numbers = [_parse_number(piece) for piece in pieces]
    if len(pieces) == 1 or numbers[0] is None:
        return None
    word, third = f"--vary {path}={text}", pieces[2] if len(pieces) > 2 else None
    if len(pieces) > 3 or numbers[1] is None or (third not in (None, "log") and numbers[2] is None):
        raise UserError(f"{word}: a range is LOW:HIGH, LOW:HIGH:log or LOW:HIGH:STEP")
    low, high = (_try_value(base, path, piece) for piece in pieces[:2])
    for value, piece in ((low, pieces[0]), (high, pieces[1])):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{word}: {path} takes no number such as {piece}; list its values")
    if low >= high:
        raise UserError(f"{word}: the lower end must be below the upper end, got {low} and {high}")
    if third == "log":
        if low <= 0:
            raise UserError(f"{word}: a range with log must begin above zero, got {low}")
        return Range(low, high, log=True)
    step = None if third is None else numbers[2]
    if step is not None and not 0 < step <= high - low:
        raise UserError(f"{word}: the step must be positive and within the range, got {step}")
    is_whole = isinstance(low, int) and isinstance(high, int)
    if step is not None and is_whole and step != int(step):
        raise UserError(f"{word}: {path} takes whole numbers, got the step {step}")
    if not is_whole:
        low, high = float(low), float(high)
    return Range(low, high, step=int(step) if step is not None and is_whole else step)


def _parse_choice(base: Experiment, path: str, text: str) -> Choice:
    values = tuple(item.partition("=")[2] for item in split_values(f"{path}={text}"))
    for value in values:
        _try_value(base, path, value)
    if len(set(values)) < 2:
        raise UserError(
            f"--vary {path}={text} is a single value; give {_FORMS}, or fix it with "
            f"--set {path}={text}"
        )
    return Choice(tuple(dict.fromkeys(values)))


def _parse_number(text: str) -> int | float | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _try_value(base: Experiment, path: str, text: str) -> Any:
    """Return the value that a setting takes for a text, after trying it on the experiment."""
    value: Any = override(base, [f"{path}={text}"])
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
