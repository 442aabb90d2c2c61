"""Check that a node sees the submitter's folder and has the submitter's packages.

A node runs `python -m controlvae.lab.cluster.preflight TOKEN` with the path of a file that the
submitter has just written.
"""

import json
import platform
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from controlvae import __version__
from controlvae.errors import UserError
from controlvae.lab.io import PART

_PACKAGES = ("torch", "numpy", "safetensors")  # they decide the numbers and the files of a run


def installed_versions() -> dict[str, str]:
    """Return the versions that must agree between the submitter and the nodes."""
    found = {"controlvae": __version__, "python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def require_same_versions(expected: Mapping[str, str]) -> None:
    """Raise UserError if this machine has other versions than the submitter.

    Args:
        expected: Versions of the submitter.
    """
    here = installed_versions()
    names = [name for name in {**expected, **here} if expected.get(name) != here.get(name)]
    if names:
        told = "; ".join(
            f"{name} {here.get(name, 'is missing')} on {socket.gethostname()}, "
            f"{expected.get(name, 'is missing')} where the jobs were submitted"
            for name in names
        )
        raise UserError(f"versions differ: {told}; use one environment on all machines")


@contextmanager
def token_file(folder: Path) -> Iterator[Path]:
    """Yield a new file with the submitter's versions, in a folder or its nearest existing parent.

    Args:
        folder: Folder that should be shared, which need not exist yet.
    """
    while not folder.is_dir():
        folder = folder.parent
    path = folder.absolute() / f"{PART}token-{uuid.uuid4().hex[:8]}"
    content = {"token": path.name, "versions": installed_versions()}
    try:
        path.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def check_token(path: Path) -> None:
    """Raise UserError if the submitter's file is not here, or was written by other versions."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"{path.parent} is not shared: {socket.gethostname()} does not see what the submitting "
            "machine writes there; choose a folder that all nodes mount"
        ) from None
    except ValueError:
        raise UserError(f"{path} was not read as it was written") from None
    require_same_versions(content["versions"])


def main() -> int:
    """Print one line and return 2 if the check fails."""
    try:
        check_token(Path(sys.argv[1]))
    except UserError as error:
        print(error)
        return 2
    print("ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
