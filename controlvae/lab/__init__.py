"""The lab: train, evaluate, compare and report models under control. Needs `controlvae[lab]`.

Names load on first use, so that `import controlvae.lab` is quick and needs no extra packages.

>>> from controlvae import lab
>>> run = lab.train("shapes2d-quick", run="runs/first", overrides={"control.target": 20})
>>> lab.evaluate(run)
>>> lab.report([run], "report.html")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from controlvae.lab.api.chat import chat
    from controlvae.lab.api.curve import curve
    from controlvae.lab.api.curve_results import CurveResult
    from controlvae.lab.api.evaluate import evaluate
    from controlvae.lab.api.export import export
    from controlvae.lab.api.find_target import FoundTarget, find_target
    from controlvae.lab.api.fit import fit
    from controlvae.lab.api.media import interpolate, reconstruct, sample, traverse
    from controlvae.lab.api.new import new
    from controlvae.lab.api.report import report
    from controlvae.lab.api.score import score
    from controlvae.lab.api.search import SearchResult, search
    from controlvae.lab.api.simulate import simulate_run
    from controlvae.lab.api.sweep import sweep
    from controlvae.lab.api.target import measure_preset_target as measure_target
    from controlvae.lab.api.train import branch, resume, set_target, train
    from controlvae.lab.cluster.local import Local
    from controlvae.lab.cluster.slurm import Slurm
    from controlvae.lab.config import PRESETS, Experiment, Gaussian, preset
    from controlvae.lab.custom.definition import define
    from controlvae.lab.runs.folder import RunFolder, find_runs
    from controlvae.lab.runs.loaded import LoadedRun, load_run
    from controlvae.lab.training.loop import Progress
    from controlvae.lab.training.repair.settings import Repair
    from controlvae.paper.reproduce import reproduce

_HOMES = {
    "CurveResult": "lab.api.curve_results",
    "Experiment": "lab.config",
    "Gaussian": "lab.config",
    "LoadedRun": "lab.runs.loaded",
    "Local": "lab.cluster.local",
    "PRESETS": "lab.config",
    "Progress": "lab.training.loop",
    "Repair": "lab.training.repair.settings",
    "RunFolder": "lab.runs.folder",
    "SearchResult": "lab.api.search",
    "Slurm": "lab.cluster.slurm",
    "FoundTarget": "lab.api.find_target",
    "branch": "lab.api.train",
    "chat": "lab.api.chat",
    "curve": "lab.api.curve",
    "define": "lab.custom.definition",
    "evaluate": "lab.api.evaluate",
    "export": "lab.api.export",
    "find_runs": "lab.runs.folder",
    "find_target": "lab.api.find_target",
    "fit": "lab.api.fit",
    "interpolate": "lab.api.media",
    "load_run": "lab.runs.loaded",
    "measure_target": "lab.api.target",
    "new": "lab.api.new",
    "preset": "lab.config",
    "reconstruct": "lab.api.media",
    "report": "lab.api.report",
    "reproduce": "paper.reproduce",
    "resume": "lab.api.train",
    "sample": "lab.api.media",
    "score": "lab.api.score",
    "search": "lab.api.search",
    "set_target": "lab.api.train",
    "simulate_run": "lab.api.simulate",
    "sweep": "lab.api.sweep",
    "train": "lab.api.train",
    "traverse": "lab.api.media",
}
# The core has a `measure_target` for training functions of the user.
_OTHER_NAMES = {"measure_target": "measure_preset_target"}

__all__ = [
    "PRESETS",
    "CurveResult",
    "Experiment",
    "FoundTarget",
    "Gaussian",
    "LoadedRun",
    "Local",
    "Progress",
    "Repair",
    "RunFolder",
    "SearchResult",
    "Slurm",
    "branch",
    "chat",
    "curve",
    "define",
    "evaluate",
    "export",
    "find_runs",
    "find_target",
    "fit",
    "interpolate",
    "load_run",
    "measure_target",
    "new",
    "preset",
    "reconstruct",
    "report",
    "reproduce",
    "resume",
    "sample",
    "score",
    "search",
    "set_target",
    "simulate_run",
    "sweep",
    "train",
    "traverse",
]


if not TYPE_CHECKING:  # a type checker would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'controlvae.lab' has no attribute {name!r}")
        module = importlib.import_module(f"controlvae.{_HOMES[name]}")
        return getattr(module, _OTHER_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
