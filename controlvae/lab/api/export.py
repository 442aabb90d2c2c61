"""Export of a trained run: programs, weights and a model card in one folder."""

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.exports.card import model_card, model_config
from controlvae.lab.exports.parts import ExportParts, export_parts
from controlvae.lab.exports.programs import require_onnx, trace, write_onnx, write_torch
from controlvae.lab.exports.weights import write_weights
from controlvae.lab.io import PART, write_json, write_text
from controlvae.lab.models.rate_conditioning import find_conditioning
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, as_folder, load_run

FORMATS = ("torch", "onnx", "hub")
DEFAULT_FORMATS = ("torch", "hub")  # without further packages


class ExportedFile(NamedTuple):
    """File that was written."""

    path: Path
    size: int  # bytes
    difference: float | None = None  # of a program: the largest to the model, 1e-4 at most

    def __str__(self) -> str:
        units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
        unit, name = next((each for each in units if self.size >= each[0]), units[-1])
        check = "" if self.difference is None else f", within {self.difference:.1g} of the model"
        return f"{self.path}: {self.size / unit:.3g} {name}{check}"


def export(
    run: LoadedRun | RunFolder | str | Path,
    out: str | Path,
    formats: str | Sequence[str] = DEFAULT_FORMATS,
    *,
    data_root: str | Path | None = None,
    trust_code: bool = False,
) -> list[ExportedFile]:
    """Export a trained model, to be used without controlvae.

    Every program is read back and compared with the model on two batch sizes. Nothing is left in
    `out` if something fails.

    Args:
        run: Run or run folder.
        out: New or empty folder.
        formats: `torch` writes `encoder.pt2` and `decoder.pt2` for `torch.export.load`. `onnx`
            writes `encoder.onnx` and `decoder.onnx`. `hub` writes `model.safetensors`,
            `config.json` and the model card `README.md`. One of these, or several.
        data_root: Data folder that is searched first.
        trust_code: Execute the code that the folder of a user-supplied model names.

    Returns:
        The files that were written.

    Raises:
        UserError: If a format is unknown, a package is missing, `out` is not empty, or the run has
            no checkpoint or a model that cannot be exported.
        RunError: If a program differs from the model by more than 1e-4.
    """
    chosen, folder = _check_formats(formats), Path(out)
    _require_empty(folder)
    if not isinstance(run, LoadedRun):
        root = None if data_root is None else Path(data_root)
        run = load_run(as_folder(run), root=root, trust_code=trust_code)
    if find_conditioning(run.model) is not None and chosen != ["hub"]:
        raise UserError(
            f"{run.folder.path} is one network for all rates, which cannot be exported as a "
            "program; format hub writes its weights"
        )
    parts = export_parts(run)
    if not parts.networks and chosen != ["hub"]:
        raise UserError(
            f"programs need a model with encode(x) and decode(z), and {type(run.model).__name__} "
            "returns its losses only; format hub writes its weights"
        )
    temporary = folder.absolute().parent / f"{PART}{uuid.uuid4().hex[:8]}-{folder.name}"
    try:
        temporary.mkdir(parents=True)
        differences = _write(run, parts, chosen, temporary)
        os.replace(temporary, folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [
        ExportedFile(path, path.stat().st_size, differences.get(path.name))
        for path in sorted(folder.iterdir())
    ]


def _check_formats(formats: str | Sequence[str]) -> list[str]:
    names = [formats] if isinstance(formats, str) else list(formats)
    for name in names:
        if name not in FORMATS:
            raise unknown_name_error("export format", name, FORMATS)
    if not names:
        raise UserError(f"choose at least one export format: {', '.join(FORMATS)}")
    if "onnx" in names:
        require_onnx()
    return names


def _require_empty(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")


def _write(
    run: LoadedRun, parts: ExportParts, formats: Sequence[str], folder: Path
) -> dict[str, float]:
    """Write the files of each format. Return the largest difference of each program."""
    differences: dict[str, float] = {}
    programs = {"torch": ("pt2", write_torch), "onnx": ("onnx", write_onnx)}
    for network in parts.networks if programs.keys() & set(formats) else ():
        program = trace(network)
        for name, (suffix, write) in programs.items():
            if name in formats:
                file = folder / f"{network.name}.{suffix}"
                differences[file.name] = write(network, program, file)
    if "hub" in formats:
        write_weights(parts.model, folder / "model.safetensors")
        write_json(folder / "config.json", model_config(run, parts))
        files = [path.name for path in folder.iterdir()]
        write_text(folder / "README.md", model_card(run, parts, files) + "\n")
    return differences
