"""Stored traces: one compressed file per problem and setting, with all its seeds."""

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from controlvae.laws import approach
from laws.problem import Problem
from laws.rivals import Setting
from laws.train import Traces


def fingerprint(problem: Problem, setting: Setting, seeds: Sequence[int]) -> str:
    """Return a digest of everything that determines the traces of a setting.

    `Auto` and prototypes are under development, so their source code counts too. The name, kind,
    reachability and scale of a problem concern the judge alone and do not count.

    Args:
        problem: Problem.
        setting: Setting of a law.
        seeds: Seeds.
    """
    law = setting.make(problem)
    plant = problem.plant
    training = replace(
        problem, name="", kind="", disturbances=(), unreachable=(), scale=None, gain_scale=1.0
    )
    modules = [inspect.getmodule(type(law)), approach] if setting.family == "auto" else []
    code = "".join(inspect.getsource(module) for module in modules if module is not None)
    parts = [repr(training), plant.__qualname__, repr(law), repr(list(seeds)), code]
    parts = [inspect.getsource(plant), *parts]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def trace_file(folder: Path, problem: Problem, setting: Setting) -> Path:
    """Return the file of the traces of a setting.

    Args:
        folder: Folder of all traces.
        problem: Problem.
        setting: Setting of a law.
    """
    return folder / problem.name / f"{setting.name.replace(' ', '_')}.npz"


def save_traces(path: Path, traces: Traces, digest: str) -> None:
    """Write traces under a temporary name first, so that no truncated file is read later.

    Args:
        path: File to write.
        traces: Traces of all seeds of a setting.
        digest: Fingerprint of the training.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part.npz")
    np.savez_compressed(temporary, fingerprint=digest, **traces._asdict())
    temporary.replace(path)


def load_traces(path: Path, digest: str | None = None) -> Traces | None:
    """Read traces. The result is None if there are none, or of another training.

    Args:
        path: File to read.
        digest: Fingerprint that the file must have; None accepts any.
    """
    if not path.is_file():
        return None
    with np.load(path) as arrays:
        if digest is not None and str(arrays["fingerprint"]) != digest:
            return None
        return Traces(arrays["measured"], arrays["weight"])
