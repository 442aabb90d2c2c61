"""A new file with a model, its data and its training, for the user to change."""

import keyword
import sys
from pathlib import Path

from controlvae.errors import UserError, shell_command

_TEMPLATE = Path(__file__).parent.parent / "templates" / "my_vae.py"
_TEMPLATE_NAME = _TEMPLATE.stem
# A file with such a name would hide the module from the programs in its folder.
_TAKEN_NAMES = sys.stdlib_module_names | {"controlvae", "numpy", "torch"}


def new(name: str | Path) -> Path:
    """Write NAME.py, a small VAE with data, which `controlvae train NAME.py` trains in seconds.

    Args:
        name: Name of the file, with or without `.py`, in an existing folder.

    Returns:
        The file. An existing one is never overwritten.

    Raises:
        UserError: If the name is not usable, or the file cannot be written.
    """
    path = Path(name).expanduser()
    _check_name(path.name.removesuffix(".py"))
    path = path.with_suffix(".py")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist; create it first")
    text = _TEMPLATE.read_text(encoding="utf-8").replace(_TEMPLATE_NAME, path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:  # x: fail if the file exists
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists and is kept; choose another name") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def next_commands(path: Path) -> list[str]:
    """Return the commands that train a new file, report on its run and export its model."""
    run = Path("runs") / path.stem
    return [
        shell_command("train", path),
        shell_command("report", run, "--trust-code"),
        shell_command("export", run, "--out", f"{path.stem}_export", "--trust-code"),
    ]


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(
            f"the name must be a Python name of letters, digits and _, such as my_vae; got {name!r}"
        )
    if name in _TAKEN_NAMES:
        raise UserError(f"{name}.py would hide the module {name}; choose another name")
