"""Loading of generated Triton source."""

import linecache
import os
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import Any


@cache
def has_triton() -> bool:
    """Return True if Triton is installed. Importing it takes long, so this does not."""
    return find_spec("triton") is not None


def is_interpreted() -> bool:
    """Return True if Triton runs kernels in its interpreter, on the host."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def load_kernel(source: str) -> Any:
    """Return the kernel `step` of a generated module.

    Triton reads the source of a kernel through `inspect`, which asks `linecache`. An entry there
    needs no file, so that nothing is written. Triton caches compiled kernels by their source.
    """
    name = f"<controlvae update {sha256(source.encode()).hexdigest()[:16]}>"
    # Without a time of modification, linecache never looks for the file.
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    # The source consists of names and numbers that this package has written.
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, name, "exec"), names)
    return names["step"]
