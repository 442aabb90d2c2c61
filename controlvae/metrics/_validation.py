"""Anything a caller may hold, as an array on the host; codes and factors, checked."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

GAPS = ("", "na", "n/a", "nan", "null")  # how programs write that there is no value


def host_array(given: Any) -> np.ndarray:
    """An array of a list, an array, or a tensor on any device, with or without a gradient."""
    if np.ma.is_masked(given):
        raise ValueError(
            "an array with masked values is given; leave those rows out, or fill them in"
        )
    if not isinstance(given, Tensor):
        try:
            array = np.ascontiguousarray(given) if np.ndim(given) else np.asarray(given)
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise ValueError(
                "a list of lists is given whose lengths differ; give each row as many values"
            ) from None
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    given = given.detach().cpu()
    return (given.float() if given.dtype == torch.bfloat16 else given).numpy()


_LARGEST = 1e12  # of a code: sums of its square are far from overflowing
_MANY = 50  # values of a factor: of more, examples must be twice as many
_EACH = 200  # examples of each value of a factor, below which scores of noise are far too high


def code_table(name: str, values: Any, least: int = 2) -> Any:
    """Checks an array or a tensor of codes, of so many latents or more."""
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < least:
        alone = "latents are compared with each other" if least > 1 else "there is no latent"
        few = alone if values.shape[-1:] < (least,) else "one example tells nothing"
        cure = few if values.ndim == 2 else "give each example a row of its latents"
        each = "two or more of each" if least > 1 else "two examples or more"
        raise ValueError(
            f"{name} must be (examples, latents) with {each}, got shape {tuple(values.shape)}; {cure}"
        )
    if values.is_complex() if isinstance(values, Tensor) else values.dtype.kind not in "buif":
        raise ValueError(f"{name} must be real numbers, got {values.dtype}")
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not finite.all():
        raise ValueError(
            f"{name} must be finite, got {int((~finite).sum()):,} values that are not; leave those rows out, "
            "wherever they are given"
        )
    numbers = values.byte() if isinstance(values, Tensor) and values.dtype == torch.bool else values
    if (largest := float(abs(numbers).max())) > _LARGEST:
        raise ValueError(
            f"{name} must lie within ±{_LARGEST:g}, got one of size {largest:.3g}; scale them down"
        )
    return values


def code_tensor(name: str, given: Any, device: torch.device | str | None = None) -> Tensor:
    """Codes of any kind, checked: float64 where they are that, else float32; by default on the device they are on."""
    values = code_table(name, given.detach() if isinstance(given, Tensor) else host_array(given))
    if not isinstance(values, Tensor) and values.dtype == np.longdouble:
        values = values.astype(np.float64)
    tensor = values if isinstance(values, Tensor) else torch.tensor(values)
    kind = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.to(place(device, tensor), kind)


def place(device: torch.device | str | None, codes: Tensor) -> torch.device:
    """Where to compute: there, if it is a device that is here, or where the codes are."""
    try:
        return codes.device if device is None else torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ValueError(
            f"device {str(device)!r} is not available here ({reason}); try device='cpu'"
        ) from None


def classes(
    factors: Any,
    examples: int,
    names: Sequence[str] | None,
    *,
    least: int = 1,
    varying: bool = True,
) -> list[np.ndarray]:
    """The columns of `factors`, each numbered 0 .. values - 1 in the order of its values: int64 (examples,).

    Whole numbers, or words. Where not all need be `varying`, one that is the same throughout is let pass.
    """
    table = _factor_table(factors, examples, names, words=True)
    if table.shape[1] < least:
        raise ValueError(
            f"factors must be {least} or more, got {table.shape[1]}; one alone is mixed up with no other"
        )
    for number, column in enumerate(table.T):
        if (column != np.floor(column)).any():
            raise ValueError(
                f"{factor_word(number, names)} must be integer classes, got {column[column != np.floor(column)][0]}; "
                "number its values, as numpy.unique(values, return_inverse=True) does"
            )
    values = [np.unique(column) for column in table.T]
    for number, found in enumerate(values):
        if varying:
            _check_varies(factor_word(number, names), found)
        if len(found) > _MANY and 2 * len(found) > examples + 1:
            raise ValueError(
                f"{factor_word(number, names)} has {len(found):,} values in {examples:,} examples, too many for "
                "classes; round it, or leave it out"
            )
    return [np.searchsorted(found, column) for found, column in zip(values, table.T, strict=True)]


def quantities(factors: Any, examples: int, names: Sequence[str] | None) -> np.ndarray:
    """Factors that are numbers rather than classes: float64 (examples, factors)."""
    table = _factor_table(factors, examples, names)
    for number, column in enumerate(table.T):
        _check_varies(factor_word(number, names), np.unique(column))
    return table.astype(np.float64)


def _factor_table(
    factors: Any, examples: int, names: Sequence[str] | None, words: bool = False
) -> np.ndarray:
    table = host_array(factors)
    if table.ndim != 2 or table.shape[1] < 1:
        cure = (
            "one factor is factors[:, None]"
            if table.ndim == 1
            else "give each example a row of its factors"
        )
        raise ValueError(f"factors must be (examples, factors), got shape {table.shape}; {cure}")
    if len(table) != examples:
        turned = "; are they the transpose?" if table.shape[1] == examples else ""
        raise ValueError(
            f"factors must have a row for each of the {examples} examples, got {len(table)}{turned}"
        )
    if names is not None and (len(names) != table.shape[1] or len(set(names)) != len(names)):
        raise ValueError(
            f"factor_names must be {table.shape[1]} different names, got {list(names)}"
        )
    if words and table.dtype.kind in "USO":
        numbers = [
            _numbers(column.tolist(), factor_word(number, names))
            for number, column in enumerate(table.T)
        ]
        table = np.stack(numbers, axis=1)
    if table.dtype.kind not in "buif":
        raise ValueError(
            f"factors must be numbers{' or words' if words else ''}, got {table.dtype}; number the values of each, as "
            "numpy.unique(values, return_inverse=True) does"
        )
    for number, column in enumerate(table.T):
        if not np.isfinite(column).all():
            raise ValueError(
                f"{factor_word(number, names)} has {int((~np.isfinite(column)).sum())} values that are "
                "not finite; leave those rows out"
            )
    if (np.abs(table.astype(np.float64)) > 2**53).any():
        raise ValueError("factors must be at most 2**53: larger numbers cannot be told apart")
    return table


def _numbers(cells: Sequence[Any], factor: str) -> np.ndarray:
    """A column of words, numbered; or of numbers among columns of words, as pandas hands them out, as it is."""
    for row, cell in enumerate(cells):
        word = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
        given = (
            word.strip().lower() not in GAPS
            if isinstance(word, str)
            else isinstance(word, Real) and word == cell
        )
        if not given:
            raise ValueError(
                f"{factor} has no value in row {row + 1:,}, but {cell!r}; fill it in, or leave the row out"
            )
    if all(isinstance(cell, Real) for cell in cells):
        try:
            return np.array(cells, dtype=np.float64)
        except OverflowError:
            raise ValueError(
                f"{factor} must be at most 2**53: larger numbers cannot be told apart"
            ) from None
    return np.unique([str(cell) for cell in cells], return_inverse=True)[1].astype(np.float64)


def factor_word(number: int, names: Sequence[str] | None) -> str:
    """What a message calls a factor: by its name, where it has one."""
    return f"factor {number}" if names is None else f"factor {names[number]!r}"


def _check_varies(factor: str, values: np.ndarray) -> None:
    if len(values) < 2:
        raise ValueError(
            f"{factor} is {values[0]} throughout, so there is nothing to tell; leave it out"
        )


def at_least(smallest: int, **given: int) -> None:
    """Refuses a setting that is no whole number, or below the smallest that makes sense."""
    for name, value in given.items():
        if not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, {smallest} or more, got {value!r}")
        if value < smallest:
            raise ValueError(f"{name} must be {smallest} or more, got {value}")


def check_enough(columns: Sequence[np.ndarray], stacklevel: int = 3) -> None:
    """Warns where a factor has few examples of each value: whatever tells examples apart then tells their values."""
    examples, values = len(columns[0]), max(int(labels.max()) + 1 for labels in columns)
    if examples < _EACH * values:
        warnings.warn(
            f"a factor of {values} values has {examples / values:.0f} examples of each; with fewer than {_EACH}, codes "
            "that tell nothing score well above chance, so compare scores at equal numbers of examples alone",
            stacklevel=stacklevel,
        )


def learn_and_test(
    columns: Sequence[np.ndarray],
    learn: int,
    test: int,
    seed: int,
    names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Random rows to learn classes from and others to test on: so many, or all in that proportion where fewer."""
    at_least(1, learn=learn, test=test)
    examples = len(columns[0])
    if examples < learn + test:
        learn = min(max(1, round(examples * learn / (learn + test))), examples - 1)
    order = np.random.default_rng(seed).permutation(examples)
    rows = order[:learn]
    for number, labels in enumerate(columns):
        if (labels[rows] == labels[rows[0]]).all():
            factor = factor_word(number, names)
            raise ValueError(
                f"{factor} has one value in the {learn} examples to learn from; give more examples"
            )
    return rows, order[learn : learn + test]


def named(values: list[float], names: Sequence[str] | None) -> dict[str, float] | list[float]:
    """A number per factor, by name where names were given."""
    return values if names is None else dict(zip(names, values, strict=True))
