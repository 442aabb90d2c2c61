"""Restricted reader of CIFAR-10's pickled batches. It executes nothing from the file.

A pickle is a program. This reader lets it name only the constructors of an array and its bytes, and
does not call even those: it records their arguments and takes the pixels from there.
"""

import io
from pickle import Unpickler, UnpicklingError
from pickletools import genops
from typing import Any

import numpy as np

_SIDE = 32
_MAX_MEMO = 1_000_000  # CIFAR-10's files have some 50,000
_ALLOWED_NAMES = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


def read_pickled_batch(data: bytes) -> np.ndarray:
    """Read the images of one file of the Python version: uint8, (n, 32, 32, 3).

    The file may be as published or pickled again with another protocol.

    Raises:
        ValueError: The file holds no images of the expected shape.
        UnpicklingError: The pickle asks for anything but an array.
    """
    _check_memo(data)
    content = _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()
    items = content.items() if isinstance(content, dict) else ()
    named = {_as_bytes(key): value for key, value in items}
    array = named.get(b"data", named.get("data"))
    match array:
        case _RecordedCall(state=(_, shape, _RecordedCall() as dtype, fortran_order, pixels)):
            pass
        case _RecordedCall(arguments=(pixels, _RecordedCall() as dtype, shape, order)):
            fortran_order = order == "F"  # protocol 5
        case _:
            raise ValueError("it holds no array named data")
    width, kind = 3 * _SIDE * _SIDE, dtype.arguments[0]
    if kind not in (b"u1", "u1") or len(shape) != 2 or shape[1] != width:
        raise ValueError(f"expected images u1 (n, {width}), got {kind} {shape}")
    flat = np.frombuffer(_as_bytes(pixels), np.uint8)
    rows = flat.reshape(shape, order="F" if fortran_order else "C")
    return rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


def _check_memo(data: bytes) -> None:
    """Refuse a file that stores an object under a huge number, for which memory is reserved."""
    for opcode, argument, _ in genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) >= _MAX_MEMO:
            raise UnpicklingError(f"it stores an object under the number {argument}")


class _RecordedCall:
    """Placeholder for an object of a pickle: its constructor's arguments and its state."""

    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _RestrictedUnpickler(Unpickler):
    def find_class(self, module: str, name: str) -> type[_RecordedCall]:
        if (module.replace("numpy._core", "numpy.core"), name) not in _ALLOWED_NAMES:
            raise UnpicklingError(f"it asks for {module}.{name}, which no file of CIFAR-10 does")
        return _RecordedCall


def _as_bytes(value: Any) -> Any:
    """Return bytes that Python 3 stored as text in protocol 2; other values unchanged."""
    match value:
        case _RecordedCall(arguments=(str() as text, _)):
            return text.encode("latin1")
    return value
