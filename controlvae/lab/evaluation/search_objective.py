"""Objectives of a search: the number of a run that is optimised."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.config import CustomModel, Experiment
from controlvae.lab.custom.sources import StreamData
from controlvae.lab.custom.task import CustomTask
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.evaluation.inception_weights import load_inception
from controlvae.lab.evaluation.metric import Direction, Evaluation, MetricGroup
from controlvae.lab.evaluation.registry import GROUPS
from controlvae.lab.evaluation.selection import is_optional
from controlvae.lab.models import build
from controlvae.lab.runs.folder import RunFolder, look_up, nested_value
from controlvae.lab.runs.loaded import LoadedRun

# Columns of the validation curve, whose examples are held out of the training set.
CURVES: dict[str, Direction] = {"elbo": "higher", "reconstruction": "lower"}
# Short names of metrics. Of several paths, the first one that the data has is meant.
_SHORT_NAMES = {
    "fid": ("fid.samples.score",),
    "kid": ("kid.samples.score",),
    "iwae": ("iwae.bound",),
    "bits_per_dimension": ("bits_per_dimension.elbo",),
    "ssim": ("likeness.ssim",),
    "psnr": ("likeness.psnr",),
    "mig": ("mig_sampled.score",),
    "rmig": ("rmig.score",),
    "dci": ("dci.disentanglement",),
    "sap": ("sap.score",),
    "factor_vae_score": ("factor_vae_score.score",),
    "beta_vae_score": ("beta_vae_score.score",),
    "modularity": ("modularity.score",),
    "explicitness": ("explicitness.score",),
    "infomec": ("infomec.infom",),
    "mig_sup": ("mig_sup.score",),
    "perplexity": ("text.perplexity", "dialog.perplexity"),
    "mutual_information": ("mutual_information.lower",),
}
# The ELBO of the training set is left out: it is no measure of a model.
_GROUPS = [group for group in GROUPS if group.name != "training set"]
# A trial is measured like any run, so without the optional metrics.
_DIRECTIONS = {
    metric.path: metric.better
    for group in _GROUPS
    for metric in group.metrics
    if not is_optional(metric.path)
}
_FID_PREFIXES = ("fid.", "kid.", "prdc.")
_CPU_FID_IMAGES = 2_048  # FID is unreliable below the number of its features
_FUNCTION = "function "  # before the name of an objective that is a function of the user


@dataclass(frozen=True)
class SearchObjective:
    """What a search optimises.

    Attributes:
        name: Name that the user gave.
        better: Direction that is better.
        paths: Candidates for its place in metrics.json. Empty for a column of the validation curve
            and for a function.
        function: Function of the user from a loaded run to a number.
    """

    name: str
    better: Direction
    paths: tuple[str, ...] = ()
    function: Callable[[LoadedRun], float] | None = None

    @property
    def is_curve(self) -> bool:
        """True if the objective is the end of the validation curve."""
        return not self.paths and self.function is None

    @property
    def needs_fid(self) -> bool:
        """True if FID or KID has to be measured."""
        return any(path.startswith(_FID_PREFIXES) for path in self.paths)

    def read(self, folder: RunFolder) -> float | None:
        """Return the value of a trained and evaluated run, or None if it is not finite.

        Args:
            folder: Run folder.

        Raises:
            UserError: If the run has no such number, with the reason that `evaluate` gave.
        """
        if self.is_curve:
            curve = folder.validations()
            if not curve:
                raise UserError(f"{folder.path} has no validation curve; set training.validation")
            return float(curve[-1][self.name])
        metrics = folder.metrics() or {}
        for path in self.paths:
            if (value := look_up(metrics, path)) is not None:
                return value
            entry = nested_value(metrics, path.partition(".")[0])
            if isinstance(entry, dict) and "skipped" in entry:
                raise UserError(f"{self.name} was not measured: {entry['skipped']}")
            if isinstance(entry, dict) and path.partition(".")[2] in entry:
                return None  # infinite: JSON has no such number
        raise UserError(f"{self.name} was not measured: the data and the model do not give it")


def find_objective(
    objective: str | Callable[[LoadedRun], float], better: Direction | None = None
) -> SearchObjective:
    """Return the objective of a name, of a path in metrics.json, or of a function.

    Args:
        objective: Name such as `elbo`, `fid` or `mig`, a path such as `dci.completeness`, or a
            function from a loaded run to a number.
        better: Direction of a function, "higher" or "lower".

    Raises:
        UserError: If there is no such objective.
    """
    if callable(objective):
        if better not in ("higher", "lower"):
            raise UserError(
                "an objective that is a function needs better='higher' or better='lower', "
                f"got {better!r}"
            )
        name = getattr(objective, "__qualname__", type(objective).__name__)
        return SearchObjective(f"{_FUNCTION}{name}", better, function=objective)
    if better is not None:
        raise UserError(f"better= is for a function; the direction of {objective!r} is known")
    if objective in CURVES:
        return SearchObjective(objective, CURVES[objective])
    paths = _SHORT_NAMES.get(objective, (objective,))
    direction = _DIRECTIONS.get(paths[0])
    if direction is None:
        known = (path for path, better in _DIRECTIONS.items() if better is not None)
        raise unknown_name_error("objective", objective, [*CURVES, *_SHORT_NAMES, *known])
    return SearchObjective(objective, direction, paths)


def count_fid_images(
    objective: SearchObjective, requested: int | None, device: torch.device
) -> int | None:
    """Return the number of images for FID, or None if the objective does not need it.

    Args:
        objective: The objective.
        requested: Number that the user asks for.
        device: Device that measures.
    """
    if not objective.needs_fid:
        return requested
    if requested == 0:
        raise UserError(f"--objective {objective.name} needs images; --fid 0 skips them")
    return requested or (_CPU_FID_IMAGES if device.type == "cpu" else 10_000)


def check_measurable(
    objective: SearchObjective,
    experiment: Experiment,
    root: Path | None,
    task: CustomTask | None = None,
) -> None:
    """Raise UserError if data and model of an experiment are missing or cannot give an objective.

    An untrained model is built, and the groups of metrics are asked whether they apply to it.

    Args:
        objective: The objective.
        experiment: Experiment that is varied.
        root: Data folder that is searched first.
        task: User-supplied model and data.
    """
    lacks_split = (
        task is not None and task.validation is None and isinstance(task.data.data, StreamData)
    )
    if lacks_split and experiment.training.validate_every > 0:
        raise UserError(
            f"--objective {objective.name} or --prune needs validation examples, and a stream "
            "cannot be split; pass validation=DATA to lab.define"
        )
    run = _untrained_run(experiment, root, task)
    if not objective.paths:
        return
    evaluation = Evaluation(run, run, 2, 0, 0)
    groups = [group for path in objective.paths for group in _GROUPS if _holds(group, path)]
    if not any(group.applies(evaluation) for group in groups):
        raise UserError(
            f"--objective {objective.name} cannot be measured on {run.examples.source}: "
            f"{_explain(groups[0])}"
        )
    if groups[0].name == "disentanglement" and run.vae.latents < 2:
        raise UserError(f"--objective {objective.name} is undefined for a single latent")
    if objective.needs_fid:
        load_inception(root=root)


def _holds(group: MetricGroup, path: str) -> bool:
    return any(metric.path == path for metric in group.metrics)


def _explain(group: MetricGroup) -> str:
    """Return what a group of metrics needs."""
    needs = {
        "disentanglement": "it needs ground-truth factors (data.factors=TABLE, or factors= in "
        "lab.define) and a Gaussian posterior",
        "images": "it needs images",
        "sentences": "it needs sentences or dialogs",
        "dialogs": "it needs dialogs",
    }
    return needs.get(group.name, "its data or model does not have it")


def _untrained_run(experiment: Experiment, root: Path | None, task: CustomTask | None) -> LoadedRun:
    """Return a run of an experiment that has no folder."""
    device = torch.device("cpu")
    examples: Any
    network: Any
    if isinstance(experiment.model, CustomModel) and task is not None:
        examples = task.examples(experiment, device)
        network = task.make_vae(experiment, device, copies=True)
    else:
        examples = load_dataset(experiment.data, root)
        network = build(experiment, examples)
    return LoadedRun(RunFolder(Path()), experiment, network, examples, 0, device, root)
