"""Local web page over run folders: live curves, latent sliders and targets of running jobs."""

import importlib.util

from controlvae.errors import UserError


def require_packages() -> None:
    """Raise UserError if a package of the dashboard is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError(
            "the dashboard needs starlette and uvicorn: pip install 'controlvae[dashboard]'"
        )
