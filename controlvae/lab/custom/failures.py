"""Exceptions of a user's code in one line, and checks of the values that it returns."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from controlvae.lab.custom.batches import iter_tensors

_PACKAGE = Path(__file__).parents[2]


def summarise(error: BaseException) -> str:
    """Return the type, the first line and the place of an exception: `KeyError: 'x' (a.py line 3)`.

    An exception of a loader's worker process arrives as a text with a traceback. Its last part has
    the type and the message.
    """
    text = str(error).strip()
    if text.startswith("Caught ") and "Original Traceback" in text:
        after = text.splitlines()[2:]
        return next((line for line in after if line and not line.startswith(" ")), after[-1])
    reason = next(iter(text.splitlines()), "")
    colon = ": " if reason else ""
    return f"{type(error).__name__}{colon}{reason}{_innermost_line(error.__traceback__)}"


def _innermost_line(traceback: Any) -> str:
    """Return the last place outside of torch and this package, such as ` (my_vae.py line 12)`."""
    place = ""
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if "torch" not in file.parts and not file.is_relative_to(_PACKAGE):
            place = f" ({file.name} line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


class BadValue(NamedTuple):
    """Place of NaN or infinity in a batch: the path of a tensor, and the number of the example."""

    path: str
    row: int


def find_non_finite(batch: Any) -> BadValue | None:
    """Return the first example with NaN or infinity, or None.

    Args:
        batch: Batch of any structure, whose tensors have examples on their first axis.
    """
    for path, tensor in iter_tensors(batch):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if bool(torch.isfinite(tensor.sum())):  # the cheap test shows that all are finite
            continue
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            rows = finite.reshape(len(tensor) if tensor.dim() else 1, -1).all(1)
            return BadValue(path, int((~rows).nonzero()[0, 0]))
    return None
