"""Checks and conversions of the arrays that metrics take: codes, factors and settings."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Strings that programs write for a missing value.
MISSING_VALUES = ("", "na", "n/a", "nan", "null")

_MAX_CODE = 1e12  # sums of squares of codes stay far from overflow
_MAX_FACTOR = 2**53  # larger integers are not exact in float64
# A factor with more values than this needs at least twice as many examples as values.
_MANY_VALUES = 50
# With fewer examples per factor value, scores of random codes are far too high.
_EXAMPLES_PER_VALUE = 200


def to_numpy(values: Any) -> np.ndarray:
    """Convert a list, an array, or a tensor on any device to a NumPy array in native byte order."""
    if np.ma.is_masked(values):
        raise ValueError("array has masked values; drop or fill those rows")
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    try:
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError(
            "rows of a nested list must have equal lengths, got different ones"
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_codes(name: str, values: Any, min_latents: int = 2) -> Any:
    """Check codes and return them unchanged.

    Args:
        name: Name of the argument, for error messages.
        values: Array or tensor (examples, latents) of finite real numbers.
        min_latents: Least number of latents.
    """
    _check_code_shape(name, tuple(values.shape), min_latents)
    if values.is_complex() if isinstance(values, Tensor) else values.dtype.kind not in "buif":
        raise ValueError(f"{name} must be real numbers, got {values.dtype}")
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not finite.all():
        raise ValueError(
            f"{name} must be finite, got {int((~finite).sum()):,} values that are not; drop those "
            "rows from codes and factors"
        )
    numbers = values.byte() if isinstance(values, Tensor) and values.dtype == torch.bool else values
    if (largest := float(abs(numbers).max())) > _MAX_CODE:
        raise ValueError(f"{name} must be within ±{_MAX_CODE:g}, got {largest:.3g}; rescale them")
    return values


def _check_code_shape(name: str, shape: tuple[int, ...], min_latents: int) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name} must be (examples, latents), got shape {shape}")
    if shape[1] < min_latents:
        raise ValueError(
            f"{name} must have at least {min_latents} latents, got {shape[1]} (shape {shape})"
        )
    if shape[0] < 2:
        raise ValueError(f"{name} must have at least 2 examples, got {shape[0]} (shape {shape})")


def as_code_tensor(name: str, values: Any, device: torch.device | str | None = None) -> Tensor:
    """Check codes and convert them to a float64 tensor if they are float64, else to float32.

    Args:
        name: Name of the argument, for error messages.
        values: Codes (examples, latents) of any type.
        device: Device of the result; default that of `values`.
    """
    raw = values.detach() if isinstance(values, Tensor) else to_numpy(values)
    codes = check_codes(name, raw)
    if not isinstance(codes, Tensor) and codes.dtype == np.longdouble:
        codes = codes.astype(np.float64)
    tensor = codes if isinstance(codes, Tensor) else torch.tensor(codes)
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.to(resolve_device(device, tensor), dtype)


def resolve_device(device: torch.device | str | None, codes: Tensor) -> torch.device:
    """Return the compute device; default that of `codes`."""
    try:
        return codes.device if device is None else torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ValueError(
            f"device {str(device)!r} is not available ({reason}); try device='cpu'"
        ) from None


def factor_labels(
    factors: Any,
    examples: int,
    names: Sequence[str] | None,
    *,
    min_factors: int = 1,
    varying: bool = True,
) -> list[np.ndarray]:
    """Number the values of each factor 0, 1, ... in increasing order.

    Args:
        factors: Integers or strings, (examples, factors).
        examples: Expected number of rows.
        names: Names of the factors, for error messages.
        min_factors: Least number of factors.
        varying: Raise an error for a constant factor.

    Returns:
        One int64 array (examples,) per factor.
    """
    table = _factor_table(factors, examples, names, allow_strings=True)
    if table.shape[1] < min_factors:
        raise ValueError(
            f"need at least {min_factors} factors, got {table.shape[1]}: disentanglement is "
            "undefined for a single factor"
        )
    labels = []
    for number, column in enumerate(table.T):
        factor = factor_label(number, names)
        fractions = column[column != np.floor(column)]
        if len(fractions):
            raise ValueError(
                f"{factor} must be integer classes, got {fractions[0]}; number its values with "
                "numpy.unique(values, return_inverse=True)"
            )
        values = np.unique(column)
        if varying:
            _check_varies(factor, values)
        if len(values) > _MANY_VALUES and 2 * len(values) > examples + 1:
            raise ValueError(
                f"{factor} has {len(values):,} values in {examples:,} examples, too many for "
                "classes; bin it or drop it"
            )
        labels.append(np.searchsorted(values, column))
    return labels


def check_quantities(factors: Any, examples: int, names: Sequence[str] | None) -> np.ndarray:
    """Check factors that are quantities and return them as float64 (examples, factors).

    Args:
        factors: Numbers, (examples, factors).
        examples: Expected number of rows.
        names: Names of the factors, for error messages.
    """
    table = _factor_table(factors, examples, names)
    for number, column in enumerate(table.T):
        _check_varies(factor_label(number, names), np.unique(column))
    return table.astype(np.float64)


def _factor_table(
    factors: Any, examples: int, names: Sequence[str] | None, allow_strings: bool = False
) -> np.ndarray:
    table = to_numpy(factors)
    _check_factor_shape(table.shape, examples, names)
    if allow_strings and table.dtype.kind in "USO":
        columns = [
            _number_column(column.tolist(), factor_label(number, names))
            for number, column in enumerate(table.T)
        ]
        table = np.stack(columns, axis=1)
    if table.dtype.kind not in "buif":
        kinds = "numbers or strings" if allow_strings else "numbers"
        raise ValueError(
            f"factors must be {kinds}, got {table.dtype}; number the values of each with "
            "numpy.unique(values, return_inverse=True)"
        )
    for number, column in enumerate(table.T):
        if not np.isfinite(column).all():
            raise ValueError(
                f"{factor_label(number, names)} has {int((~np.isfinite(column)).sum())} values "
                "that are not finite; drop those rows"
            )
    if (np.abs(table.astype(np.float64)) > _MAX_FACTOR).any():
        raise ValueError("factors must be at most 2**53: larger numbers are not exact in float64")
    return table


def _check_factor_shape(shape: tuple[int, ...], examples: int, names: Sequence[str] | None) -> None:
    if len(shape) != 2 or shape[1] < 1:
        hint = "; pass a single factor as factors[:, None]" if len(shape) == 1 else ""
        raise ValueError(f"factors must be (examples, factors), got shape {shape}{hint}")
    if shape[0] != examples:
        hint = "; are they transposed?" if shape[1] == examples else ""
        raise ValueError(f"factors must have one row per example, {examples}, got {shape[0]}{hint}")
    if names is not None and (len(names) != shape[1] or len(set(names)) != len(names)):
        raise ValueError(f"factor_names must be {shape[1]} different names, got {list(names)}")


def _number_column(cells: Sequence[Any], factor: str) -> np.ndarray:
    """Number the strings of a column. A column of numbers stays as it is.

    pandas gives numbers as objects if another column of the table has strings.
    """
    for row, cell in enumerate(cells):
        if _is_missing(cell):
            raise ValueError(
                f"{factor} has no value in row {row + 1:,}, got {cell!r}; fill it in or drop it"
            )
    if all(isinstance(cell, Real) for cell in cells):
        try:
            return np.array(cells, dtype=np.float64)
        except OverflowError:
            raise ValueError(
                f"{factor} must be at most 2**53: larger numbers are not exact in float64"
            ) from None
    return np.unique([str(cell) for cell in cells], return_inverse=True)[1].astype(np.float64)


def _is_missing(cell: Any) -> bool:
    text = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
    if isinstance(text, str):
        return text.strip().lower() in MISSING_VALUES
    return not (isinstance(text, Real) and text == cell)  # NaN differs from itself


def factor_label(number: int, names: Sequence[str] | None) -> str:
    """Return how messages call a factor: by its name if it has one, else by its number."""
    return f"factor {number}" if names is None else f"factor {names[number]!r}"


def _check_varies(factor: str, values: np.ndarray) -> None:
    if len(values) < 2:
        raise ValueError(f"{factor} is constant ({values[0]}); drop it")


def check_at_least(smallest: int, **settings: int) -> None:
    """Raise ValueError if a setting is not an integer or is below the smallest valid value."""
    for name, value in settings.items():
        if not isinstance(value, Integral):
            raise ValueError(f"{name} must be an integer, at least {smallest}, got {value!r}")
        if value < smallest:
            raise ValueError(f"{name} must be at least {smallest}, got {value}")


def warn_if_few_examples(labels: Sequence[np.ndarray], stacklevel: int = 3) -> None:
    """Warn if a factor has few examples per value, which raises the scores of random codes."""
    examples, values = len(labels[0]), max(int(column.max()) + 1 for column in labels)
    if examples < _EXAMPLES_PER_VALUE * values:
        warnings.warn(
            f"a factor with {values} values has {examples / values:.0f} examples per value; below "
            f"{_EXAMPLES_PER_VALUE}, random codes score well above 0, so compare scores only at "
            "equal numbers of examples",
            stacklevel=stacklevel,
        )


def split_train_test(
    labels: Sequence[np.ndarray],
    train: int,
    test: int,
    seed: int,
    names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose random rows to train a predictor on, and others to test it on.

    Args:
        labels: Labels of each factor, (examples,).
        train: Rows to train on. With fewer than `train + test` examples, all of them are split in
            that proportion.
        test: Rows to test on.
        seed: Seed of the choice.
        names: Names of the factors, for error messages.

    Returns:
        Indices of the training rows and of the test rows.
    """
    check_at_least(1, learn=train, test=test)  # `learn` is the public name of the setting
    examples = len(labels[0])
    if examples < train + test:
        train = min(max(1, round(examples * train / (train + test))), examples - 1)
    order = np.random.default_rng(seed).permutation(examples)
    rows = order[:train]
    for number, column in enumerate(labels):
        if (column[rows] == column[rows[0]]).all():
            factor = factor_label(number, names)
            raise ValueError(
                f"{factor} is constant in the {train} training examples; pass more examples"
            )
    return rows, order[train : train + test]


def by_factor_name(
    values: list[float], names: Sequence[str] | None
) -> dict[str, float] | list[float]:
    """Return one number per factor, as a dict by name if names are given."""
    return values if names is None else dict(zip(names, values, strict=True))
