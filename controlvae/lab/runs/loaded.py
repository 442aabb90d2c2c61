"""A trained run opened for looking at: its experiment, its data, and its model at the last good checkpoint."""

import contextlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from controlvae.distributions import gaussian_kl
from controlvae.errors import FactorsError, UserError, shell_command
from controlvae.lab.config import DialogVAEConfig, Experiment, Gaussian, Images, TextVAEConfig
from controlvae.lab.config.digest import config_digest
from controlvae.lab.data.dataset import Dataset, ImageDataset, stream_key
from controlvae.lab.data.registry import held_out_settings, load_dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.validation_split import training_indices
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.models import DialogVAE, Model, build
from controlvae.lab.models.base import VAE
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder


@dataclass(frozen=True)
class LoadedRun:
    """What pictures and metrics need of a run."""

    folder: RunFolder
    experiment: Experiment
    model: Model
    examples: Dataset
    step: int
    device: torch.device
    root: Path | None = None  # where data files are looked for first
    among: Tensor | None = (
        None  # the examples it was trained on, where some were kept for validation
    )
    changed: bool = False  # its data is not what it was when training began
    shape: tuple[
        int, ...
    ] = ()  # of an example it was trained on: sentences are written up to this length
    thorough: bool = False  # on as many examples as a GPU takes, however long it takes elsewhere

    @property
    def available(self) -> int:
        """How many examples may be measured: those kept for validation are not among them."""
        return len(self.examples) if self.among is None else len(self.among)

    def affords(self, on_a_gpu: int, elsewhere: int) -> int:
        """How many examples a measurement takes: what is a second on a GPU is minutes on a CPU."""
        return on_a_gpu if self.thorough else elsewhere


def load_run(
    folder: RunFolder | Path | str,
    *,
    root: Path | None = None,
    device: torch.device | None = None,
    factors: str | None = None,
) -> LoadedRun:
    """Loads the newest good checkpoint of a run. `root` is where data files are looked for first.

    `factors` is a table of them, in the place of the run's own `data.factors`: training never looks at it. One that is
    given must be readable; a run whose own is not is opened without.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
    device = device or torch.device("cpu")
    experiment = folder.experiment()
    saved, damaged = checkpoint.load(folder.checkpoints)
    if saved is None:
        first = "in training, its first is half a minute away; else train it"
        raise UserError(
            f"{folder.path} has no checkpoint yet: {first}: {shell_command('resume', folder.path)}"
        )
    if saved.numbers.get("experiment", config_digest(experiment)) != config_digest(experiment):
        raise UserError(
            f"the checkpoint in {folder.path} was written by other settings than its experiment.json has now; "
            "put those back that its command names, or train in another folder"
        )
    for line in damaged:
        warnings.warn(f"{folder.path}: {line}; that of step {saved.step:,} is taken", stacklevel=2)
    if factors is not None:
        experiment = _with_factors(experiment, factors, folder)
    known = saved.numbers.get("data", "")
    try:
        examples, changed = _examples(folder, experiment, known, root)
    except FactorsError as error:
        if factors is not None:
            raise
        warnings.warn(f"{folder.path}: without its factors: {error}", stacklevel=2)
        experiment = _with_factors(experiment, None, folder)
        examples, changed = _examples(folder, experiment, known, root)
    examples = examples.to(device)
    model = build(experiment, examples)
    optimise_layers(model)
    try:
        model.load_state_dict(strip_prefix(saved.tensors, "model."))
    except RuntimeError:
        raise UserError(
            f"the checkpoint in {folder.path} does not fit its experiment.json; was it edited? Put back what was "
            "there, or train in another folder"
        ) from None
    among = training_indices(experiment, len(examples)) if len(examples) else None
    return LoadedRun(
        folder,
        experiment,
        model.to(device).eval(),
        examples,
        saved.step,
        device,
        root,
        among,
        changed,
        examples.shape,
        thorough=device.type == "cuda",
    )


def _with_factors(experiment: Experiment, table: str | None, folder: RunFolder) -> Experiment:
    if not isinstance(experiment.data, Images):
        raise UserError(
            f"a table of factors is for pictures of one's own; {folder.path} is of {experiment.data}"
        )
    return replace(experiment, data=replace(experiment.data, factors=table))


def _examples(
    folder: RunFolder, experiment: Experiment, known: str, root: Path | None
) -> tuple[Dataset, bool]:
    """What a run was trained on, and whether it has changed since; where that is gone, what was kept of it."""
    try:
        examples = load_dataset(experiment.data, root)
        changed = known not in ("", examples.fingerprint())
        if changed and isinstance(examples, SentenceDataset | DialogDataset):
            raise UserError(
                f"the text of {folder.path} is not what it was when training began: words would be mistaken"
            )
    except FactorsError:  # the data itself is there
        raise
    except UserError as error:
        kind = _KINDS.get(type(experiment.model), ImageDataset)
        file = folder.path / kind.metadata_file
        if not file.is_file():
            raise
        return _kept(kind, file, str(error)), False
    return examples, changed


_KINDS: dict[type, type[SentenceDataset] | type[DialogDataset]] = {
    TextVAEConfig: SentenceDataset,
    DialogVAEConfig: DialogDataset,
}


def _kept(
    kind: type[SentenceDataset] | type[DialogDataset] | type[ImageDataset], file: Path, reason: str
) -> Dataset:
    try:
        return kind.from_metadata(file.read_text(encoding="utf-8"), reason)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{file} cannot be read: {error}; and {reason}") from None


def best_by_validation(run: LoadedRun) -> LoadedRun | None:
    """The same run with the weights that did best on its validation examples; None where none were kept."""
    return _with_weights(run, run.folder.best)


def newest(run: LoadedRun) -> LoadedRun:
    """The same run with the weights of the newest good checkpoint."""
    return _with_weights(run, run.folder.checkpoints) or run


def _with_weights(run: LoadedRun, path: Path) -> LoadedRun | None:
    saved, _ = checkpoint.load(path)
    if saved is None:
        return None
    model = build(run.experiment, run.examples)
    optimise_layers(model)
    model.load_state_dict(strip_prefix(saved.tensors, "model."))
    return replace(run, model=model.to(run.device).eval(), step=saved.step)


def on_test_examples(run: LoadedRun) -> LoadedRun | None:
    """The same run over the held-out part of its data; None where there is none."""
    must_have_examples(run)
    settings = held_out_settings(run.experiment.data, run.root)
    if run.changed and isinstance(
        settings, Images
    ):  # its parts are drawn by the number of pictures
        raise UserError(
            f"the pictures of {run.folder.path} are not what they were when training began, so it may have been "
            f"trained on some that would be its test part now"
        )
    if settings is None:
        return None
    examples = load_dataset(settings, run.root)
    if len(examples) < 2:
        raise UserError(
            f"the test part of {run.folder.path} is a single example, which says little"
        )
    return replace(run, examples=examples.to(run.device), among=None)


def on_unseen_examples(run: LoadedRun) -> LoadedRun:
    """The same run over its test part where that is at hand, and as it is elsewhere."""
    with contextlib.suppress(UserError):
        return on_test_examples(run) or run
    return run


def must_have_examples(run: LoadedRun) -> None:
    if not len(run.examples):  # what was kept of them alone is here, and why
        raise UserError(run.examples.source)


def format_count(count: int, split: str) -> str:
    """`10,000 examples (the test set)`"""
    return f"{count:,} examples" + ("" if split == "all" else f" ({split})")


def some_examples(run: LoadedRun, count: int, stream: int = 7) -> Tensor:
    """A fixed random choice of examples, the same at every call: indices (count,)."""
    must_have_examples(run)
    generator = torch.Generator().manual_seed(stream_key(0, stream))
    among = torch.arange(len(run.examples)) if run.among is None else run.among
    return among[torch.randperm(len(among), generator=generator)[:count]].to(run.device)


@torch.no_grad()
def decoded(run: LoadedRun, z: Tensor, batch: int = 250) -> Tensor:
    """The decoder's mean of p(x|z), pictures in [0, 1]: (n, *shape)."""
    model = picture_model(run)
    return torch.cat([torch.sigmoid(model.decode(part)) for part in z.split(batch)])


def picture_model(run: LoadedRun) -> VAE:
    """The model of a run over pictures; a run over sentences or dialogs has none to show."""
    if not isinstance(run.model, VAE):
        what, instead = (
            ("dialogs", "chat") if isinstance(run.model, DialogVAE) else ("sentences", "sample")
        )
        raise UserError(
            f"{run.folder.path} is a model of {what}, not of pictures; see controlvae {instead}"
        )
    return run.model


def pixel_variance(run: LoadedRun) -> dict[str, float]:
    """The variance of p(x|z) under a Gaussian likelihood, as it was set or learnt; nothing under another."""
    likelihood, learnt = (
        run.experiment.objective.likelihood,
        getattr(run.model, "pixel_log_variance", None),
    )
    if not isinstance(likelihood, Gaussian):
        return {}
    return {"pixel_variance": likelihood.variance if learnt is None else learnt.exp().item()}


def prior_codes(run: LoadedRun, count: int, seed: int = 0) -> Tensor:
    """z from N(0, I), a function of the seed alone: the first ones are the same for any count. (count, latents)"""
    generator = torch.Generator().manual_seed(stream_key(seed, 13))
    whole = count + -count % 16  # torch fills sixteen at a time, and a remainder differently
    return torch.randn(whole, run.model.latents, generator=generator)[:count].to(run.device)


@torch.no_grad()
def latent_kl(run: LoadedRun, indices: Tensor) -> Tensor:
    """Mean KL of each latent over these examples: (latents,)."""
    return gaussian_kl(run.model.encode(run.examples.batch(indices))).mean(0)
