"""Import of the packages that some metrics need, with a one-line error where they are missing."""

import importlib
from typing import Any


def require(metric: str, module: str, packages: str) -> Any:
    """Import a module.

    Args:
        metric: Name of the metric that needs it.
        module: Module to import.
        packages: Arguments of `pip install` that provide it.

    Raises:
        ModuleNotFoundError: It is not installed. The message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({_first_line(error)})"
        raise ModuleNotFoundError(
            f"{metric} needs {packages}{reason}: pip install {packages}"
        ) from None
    except RuntimeError as error:  # torchvision for another build of torch
        raise ModuleNotFoundError(
            f"{metric} needs {packages} that fit this torch ({_first_line(error)}): "
            f"pip install {packages}"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:100]
