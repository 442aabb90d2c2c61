"""Loaded runs: the experiment, the data, and the model at the last intact checkpoint."""

import contextlib
import html
import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from controlvae.distributions import gaussian_kl
from controlvae.errors import FactorsError, UserError, shell_command
from controlvae.lab.config import CustomModel, Experiment, Gaussian, Images
from controlvae.lab.config.digest import config_digest
from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.data.registry import (
    held_out_settings,
    load_dataset,
    validation_settings,
)
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.validation_split import training_indices
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.models import DialogVAE, Model, build
from controlvae.lab.models.base import VAE
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.curve_svg import Curve, draw_curves
from controlvae.lab.runs.data import MissingDataWarning, load_run_data
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.log import Log
from controlvae.lab.runs.repairs import RepairRecord
from controlvae.lab.runs.user_code import (
    UntrustedCodeError,
    check_same_model,
    find_task,
    supply_code,
)


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """Trained run: its model, data, log and metrics."""

    folder: RunFolder
    experiment: Experiment
    network: Model | CustomVAE | None  # None without the code of a user-supplied model
    examples: Dataset
    step: int
    device: torch.device
    root: Path | None = None  # data folder that is searched first
    among: Tensor | None = None  # indices of the training split, if some examples are held out
    changed: bool = False  # the data has changed since training started
    shape: tuple[int, ...] = ()  # of a training example: the maximum length of sentences
    thorough: bool = False  # measure as many examples as on a GPU, even if it takes minutes

    @property
    def vae(self) -> Any:
        """Model behind the interface that evaluation and plots use.

        Raises:
            UserError: If the code of a user-supplied model is not at hand.
        """
        if self.network is None:
            find_task(self.folder)  # raises, and says what to do
            raise UserError(f"{self.folder.path} was loaded before its model was known; load again")
        return self.network

    @property
    def model(self) -> Any:
        """Trained model in evaluation mode: a built-in network, or the user's own module."""
        return self.vae.module if isinstance(self.network, CustomVAE) else self.vae

    @property
    def log(self) -> Log:
        """Log records, one per line of `log.jsonl`; `log["kl"]` is a column."""
        return Log(self.folder.records())

    @property
    def best(self) -> "LoadedRun | None":
        """The run with its best weights by validation, or None if none were kept."""
        return with_best_weights(self)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """Results of the last evaluation, or None."""
        return self.folder.metrics()

    @property
    def available(self) -> int:
        """Number of examples to measure, without those held out for validation."""
        return len(self.examples) if self.among is None else len(self.among)

    @property
    def repairs(self) -> list[RepairRecord]:
        """Repairs during training, oldest first: symptom, evidence, remedy and changed settings."""
        return self.folder.repairs()

    def example_budget(self, on_gpu: int, on_cpu: int) -> int:
        """Return how many examples a measurement takes: seconds on a GPU are minutes on a CPU."""
        return on_gpu if self.thorough else on_cpu

    def plot(self) -> Any:
        """Return a matplotlib figure of the controlled term and its target over training."""
        # Plots are in a layer above runs, so they are imported when they are needed.
        curves = importlib.import_module("controlvae.lab.plots.curves")
        trace = curves.RunTrace.of(self.experiment.name, self.folder)
        return curves.plot_controlled_term([trace], self.experiment.objective.controlled_quantity)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """Measure every metric that applies, and write `metrics.json`. See `lab.evaluate`."""
        api = importlib.import_module("controlvae.lab.api.evaluate")
        metrics: dict[str, Any] = api.evaluate(self, device=str(self.device), **options)
        return metrics

    def report(self, out: str | Path | None = None, **options: Any) -> Path:
        """Write an HTML report on the run. See `lab.report`."""
        api = importlib.import_module("controlvae.lab.api.report")
        path: Path = api.report(self, out, device=str(self.device), **options)
        return path

    def traverse(self, **options: Any) -> Any:
        """Return a matplotlib figure of images while one latent at a time moves."""
        return importlib.import_module("controlvae.lab.plots.traversal").plot_traversal(
            self, **options
        )

    def sample(self, count: int = 64, *, seed: int = 0) -> Any:
        """Decode draws from the prior N(0, I).

        Args:
            count: Number of samples.
            seed: Seed of the draws. The first samples are the same for any count.

        Returns:
            Images in [0, 1], (count, channels, height, width), or a list of sentences.
        """
        if isinstance(self.examples, SentenceDataset):
            text = importlib.import_module("controlvae.lab.evaluation.text")
            return text.sample_sentences(self, count, seed=seed)
        return decode_codes(self, prior_codes(self, count, seed))

    @torch.no_grad()
    def reconstruct(self, x: Tensor | None = None, *, count: int = 12) -> Tensor:
        """Decode the posterior means of images.

        Args:
            x: Images in [0, 1], (n, channels, height, width). The default is `count` examples.
            count: Number of examples, if `x` is not given.

        Returns:
            Images in [0, 1], of the same shape as `x`.
        """
        model = image_model(self)
        if x is None:
            x = self.examples.batch(select_examples(self, count))
        if isinstance(model, CustomVAE):
            z = model.encode(x.to(self.device, model.dtype)).mean
            return model.decode_mean(z)
        if x.ndim != 4 or x.shape[1:] != tuple(self.shape) or not x.is_floating_point():
            raise UserError(
                f"expected float images in [0, 1] of shape (n, {', '.join(map(str, self.shape))}), "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        return decode_codes(self, model.encode(x.to(self.device)).mean)

    def at_rate(self, rate: float) -> "LoadedRun":
        """Return a rate-conditioned run with a copy of its network, fixed at a rate in nats.

        The rate is that of held-out examples if `lab.curve` has measured the run.
        """
        curves = importlib.import_module("controlvae.lab.evaluation.rate_curve")
        fixed: LoadedRun = curves.run_at_measured_rate(self, rate)
        return fixed

    def __repr__(self) -> str:
        steps = self.experiment.training.steps
        path, name = str(self.folder.path), self.experiment.name
        return f"LoadedRun({path!r}, {name!r}, step {self.step:,} of {steps:,}, {self.device})"

    def _repr_html_(self) -> str:
        """Return the training curve and a small table for notebooks."""
        last, metrics = self.folder.last_record() or {}, self.metrics or {}
        rows = {
            "run": self.folder.path,
            "experiment": self.experiment.name,
            "step": f"{self.step:,} of {self.experiment.training.steps:,}",
            "data": self.examples.source,
            "law": self.experiment.control,
        }
        if last:
            target = "" if last.get("target") is None else f" (target {last['target']:.2f})"
            rows["KL"] = f"{last['kl']:.2f} nats{target}"
        if "elbo" in metrics:
            rows["ELBO"] = f"{metrics['elbo']:.2f} nats"
        cells = ((name, html.escape(str(value))) for name, value in rows.items())
        lines = (f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
        curve = Curve.of(self.experiment, self.log)
        svg = draw_curves([curve], 0, self.experiment.training.steps) if last else ""
        return f"<div>{svg}<table>{''.join(lines)}</table></div>"


def load_run(
    folder: RunFolder | Path | str,
    *,
    root: Path | None = None,
    device: torch.device | str | None = None,
    factors: str | None = None,
    model: Any = None,
    dataset: Any = None,
    trust_code: bool = False,
) -> LoadedRun:
    """Load the newest intact checkpoint of a run.

    Data files are looked for as in training. If that fails, they are looked for next to the run
    folder and its parents, so a run can be loaded from any working directory. Without its data the
    model is still loaded, with a warning.

    Args:
        folder: Run folder.
        root: Data folder that is searched first.
        device: Device of the model. The default is the CPU.
        factors: Table of factors, instead of `data.factors`. Training does not use it. A run whose
            own table is missing is loaded without one.
        model: User-supplied model that the run was trained with: a module, class or function.
        dataset: User-supplied data of that run, in any form that `lab.fit` takes.
        trust_code: Import and execute the code that the run folder names.

    Raises:
        UserError: If there is no intact checkpoint, or it does not fit the run.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
    device = torch.device(device or "cpu")
    experiment = folder.experiment()
    saved = _load_checkpoint(folder, experiment)
    if isinstance(experiment.model, CustomModel):
        if model is not None:
            supply_code(folder, model, dataset, root)
        return _load_custom(folder, experiment, saved, device, trust_code)
    if factors is not None:
        experiment = _with_factors(experiment, factors, folder)
    fingerprint = saved.numbers.get("data", "")
    try:
        data = load_run_data(folder, experiment, fingerprint, root)
    except FactorsError as error:
        if factors is not None:
            raise
        warnings.warn(f"{folder.path}: loaded without its factors: {error}", stacklevel=2)
        experiment = _with_factors(experiment, None, folder)
        data = load_run_data(folder, experiment, fingerprint, root)
    examples = data.examples.to(device)
    if not len(examples):
        message = f"{folder.path}: loaded without its data: {examples.source}"
        warnings.warn(message, MissingDataWarning, stacklevel=2)
    model = _build_model(folder, experiment, examples, saved)
    return LoadedRun(
        folder,
        experiment,
        model.to(device).eval(),
        examples,
        saved.step,
        device,
        data.root,
        training_indices(experiment, len(examples)) if len(examples) else None,
        data.changed,
        examples.shape,
        thorough=device.type == "cuda",
    )


def with_best_weights(run: LoadedRun) -> LoadedRun | None:
    """Return the run with its best weights by validation, or None if none were kept."""
    return _with_weights(run, run.folder.best)


def with_newest_weights(run: LoadedRun) -> LoadedRun:
    """Return the run with the weights of the newest intact checkpoint."""
    return _with_weights(run, run.folder.checkpoints) or run


def on_test_examples(run: LoadedRun) -> LoadedRun | None:
    """Return the run with its test set, or None if the data has none.

    Raises:
        UserError: If the test set is missing, too small, or may contain training examples.
    """
    require_examples(run)
    if isinstance(run.network, CustomVAE):
        return _on_validation_examples(run)
    settings = held_out_settings(run.experiment.data, run.root)
    # The splits of the user's images depend on the number of images.
    if run.changed and isinstance(settings, Images):
        raise UserError(
            f"the images of {run.folder.path} have changed since training started, so its test set "
            "may contain training examples"
        )
    if settings is None:
        return None
    examples = load_dataset(settings, run.root)
    if len(examples) < 2:
        raise UserError(f"the test set of {run.folder.path} has a single example; 2 are needed")
    return replace(run, examples=examples.to(run.device), among=None)


def on_published_validation(run: LoadedRun) -> LoadedRun | None:
    """Return the run with the published validation split of its data, or None if there is none.

    Raises:
        UserError: If the split is missing.
    """
    settings = validation_settings(run.experiment.data)
    if settings is None:
        return None
    return replace(run, examples=load_dataset(settings, run.root).to(run.device), among=None)


def on_unseen_examples(run: LoadedRun) -> LoadedRun:
    """Return the run with its test set if that is available, else unchanged."""
    with contextlib.suppress(UserError):
        return on_test_examples(run) or run
    return run


def require_examples(run: LoadedRun) -> None:
    """Raise UserError if the run was loaded without its data."""
    if not len(run.examples):
        raise UserError(run.examples.source)  # the reason why they are missing


def format_count(count: int, split: str) -> str:
    """Return a text such as `10,000 examples (the test set)`."""
    return f"{count:,} examples" + ("" if split == "all" else f" ({split})")


def select_examples(run: LoadedRun, count: int, stream: int = 7) -> Tensor:
    """Return the indices (count,) of a fixed random selection of examples.

    Args:
        run: Loaded run.
        count: Number of examples.
        stream: Random stream. Each gives another selection.
    """
    require_examples(run)
    generator = torch.Generator().manual_seed(stream_key(0, stream))
    among = torch.arange(len(run.examples)) if run.among is None else run.among
    return among[torch.randperm(len(among), generator=generator)[:count]].to(run.device)


@torch.no_grad()
def decode_codes(run: LoadedRun, z: Tensor, batch: int = 250) -> Tensor:
    """Return the mean of p(x|z), images in [0, 1]: (n, *shape).

    Args:
        run: Run over images.
        z: Codes (n, latents).
        batch: Number of codes to decode at once.
    """
    model = image_model(run)
    return torch.cat([as_pixels(run, model.decode_mean(part)) for part in z.split(batch)])


def as_pixels(run: LoadedRun, x: Tensor) -> Tensor:
    """Return images of a run with values in [0, 1]. Other data stays as it is."""
    examples = run.examples
    if isinstance(examples, UserExamples) and examples.holds_images:
        return examples.to_pixels(x)
    return x


def shows_codes(run: LoadedRun) -> bool:
    """Return whether a model shows Gaussian codes. All but some user-supplied models do."""
    return not isinstance(run.vae, CustomVAE) or run.vae.has_gaussian_posterior


def image_model(run: LoadedRun) -> VAE | CustomVAE:
    """Return the model of a run over images.

    Raises:
        UserError: If the run is over sentences or dialogs.
    """
    if isinstance(run.vae, CustomVAE):
        if run.vae.form != "encode" or run.vae.likelihood == "categorical":
            raise UserError(
                f"{run.folder.path} needs a model with encode(x) and decode(z) of values; "
                f"{type(run.model).__name__} has another form"
            )
        return run.vae
    if not isinstance(run.vae, VAE):
        dialogs = isinstance(run.vae, DialogVAE)
        kind, command = ("dialogs", "chat") if dialogs else ("sentences", "sample")
        raise UserError(
            f"{run.folder.path} is a model of {kind}, not of images; see controlvae {command}"
        )
    return run.vae


def pixel_variance(run: LoadedRun) -> dict[str, float]:
    """Return the variance of a Gaussian p(x|z), set or learnt. Other likelihoods give nothing."""
    likelihood = run.experiment.objective.likelihood
    learnt = getattr(run.vae, "pixel_log_variance", None)
    if not isinstance(likelihood, Gaussian):
        return {}
    return {"pixel_variance": likelihood.variance if learnt is None else learnt.exp().item()}


def prior_codes(run: LoadedRun, count: int, seed: int = 0) -> Tensor:
    """Draw z from N(0, I): (count, latents). The first codes are the same for any count.

    Args:
        run: Loaded run.
        count: Number of codes.
        seed: Seed of the draws.
    """
    generator = torch.Generator().manual_seed(stream_key(seed, 13))
    padded = count + -count % 16  # torch fills sixteen at a time, and a remainder differently
    return torch.randn(padded, run.vae.latents, generator=generator)[:count].to(run.device)


@torch.no_grad()
def latent_kl(run: LoadedRun, indices: Tensor) -> Tensor:
    """Return the mean KL of each latent over these examples: (latents,)."""
    return gaussian_kl(run.vae.encode(run.examples.batch(indices))).mean(0)


def as_folder(run: LoadedRun | RunFolder | Path | str) -> RunFolder:
    """Return the folder of a run given in any form."""
    if isinstance(run, LoadedRun):
        return run.folder
    return run if isinstance(run, RunFolder) else RunFolder(Path(run))


def load_runs(
    folders: Sequence[RunFolder], *, root: Path | None = None, device: torch.device | None = None
) -> LoadedRun | list[LoadedRun]:
    """Load runs. A single folder gives one run, several give a list.

    Args:
        folders: Run folders.
        root: Data folder that is searched first.
        device: Device of the models.
    """
    loaded = [load_run(folder, root=root, device=device) for folder in folders]
    return loaded[0] if len(loaded) == 1 else loaded


def _load_checkpoint(folder: RunFolder, experiment: Experiment) -> checkpoint.Checkpoint:
    saved, corrupt = checkpoint.load_latest(folder.checkpoints)
    if saved is None:
        resume = shell_command("resume", folder.path)
        raise UserError(
            f"{folder.path} has no checkpoint yet; a run in training writes its first within half "
            f"a minute, otherwise train it: {resume}"
        )
    if not folder.accepts(saved.numbers.get("experiment", config_digest(experiment))):
        raise UserError(
            f"the checkpoint in {folder.path} was written with other settings than its "
            "experiment.json has now; restore the settings, or train in another folder"
        )
    for line in corrupt:
        message = f"{folder.path}: {line}; using that of step {saved.step:,}"
        warnings.warn(message, stacklevel=3)
    return saved


def _build_model(
    folder: RunFolder, experiment: Experiment, examples: Dataset, saved: checkpoint.Checkpoint
) -> Model:
    model = build(experiment, examples)
    optimise_layers(model)
    try:
        model.load_state_dict(strip_prefix(saved.tensors, "model."))
    except RuntimeError:
        raise UserError(
            f"the checkpoint in {folder.path} does not fit its experiment.json; was it edited? "
            "Restore the file, or train in another folder"
        ) from None
    return model


def _with_factors(experiment: Experiment, table: str | None, folder: RunFolder) -> Experiment:
    if not isinstance(experiment.data, Images):
        raise UserError(
            f"a table of factors needs user-supplied images; {folder.path} uses {experiment.data}"
        )
    return replace(experiment, data=replace(experiment.data, factors=table))


def _with_weights(run: LoadedRun, path: Path) -> LoadedRun | None:
    saved, _ = checkpoint.load_latest(path)
    if saved is None:
        return None
    if isinstance(run.network, CustomVAE):
        network = _load_custom_weights(run.folder, run.experiment, saved, run.device)
        return replace(run, network=network, step=saved.step)
    model = build(run.experiment, run.examples)
    optimise_layers(model)
    model.load_state_dict(strip_prefix(saved.tensors, "model."))
    return replace(run, network=model.to(run.device).eval(), step=saved.step)


def _load_custom(
    folder: RunFolder,
    experiment: Experiment,
    saved: checkpoint.Checkpoint,
    device: torch.device,
    trust_code: bool,
) -> LoadedRun:
    """Load a run of a user-supplied model. Without its code, only its log and metrics are loaded."""
    try:
        task = find_task(folder, trust_code=trust_code)
    except UntrustedCodeError as error:
        warnings.warn(f"loaded without its model: {error}", stacklevel=3)
        empty = ImageDataset.from_metadata('{"shape": [1, 1, 1], "binary": false}', str(error))
        return LoadedRun(folder, experiment, None, empty, saved.step, device)
    examples = task.examples(experiment, device)
    return LoadedRun(
        folder,
        experiment,
        _load_custom_weights(folder, experiment, saved, device),
        examples,
        saved.step,
        device,
        among=task.training_indices(experiment),
        changed=(saved.numbers.get("data") or "") not in ("", task.data.data.fingerprint()),
        shape=examples.shape,
        thorough=device.type == "cuda",
    )


def _load_custom_weights(
    folder: RunFolder, experiment: Experiment, saved: checkpoint.Checkpoint, device: torch.device
) -> CustomVAE:
    """Return a copy of the user's model with the weights of a checkpoint: their average if any."""
    vae = find_task(folder).make_vae(experiment, device, copies=True)
    check_same_model(folder, vae.module)
    weights = strip_prefix(saved.tensors, "ema.") or strip_prefix(saved.tensors, "model.")
    vae.module.load_state_dict(weights)
    vae.module.eval()
    return vae


def _on_validation_examples(run: LoadedRun) -> LoadedRun | None:
    """Return the run of a user-supplied model with its validation examples, if it has some."""
    found = find_task(run.folder).validation_examples(run.experiment, run.device)
    return None if found is None else replace(run, examples=found[0], among=found[1].cpu())
