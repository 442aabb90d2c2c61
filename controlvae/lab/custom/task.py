"""Tasks: the user's model, data and functions that an experiment's settings only name."""

import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from controlvae.errors import UserError
from controlvae.lab.config import Adam, CustomData, CustomModel, CustomOptimiser, Elbo, Experiment
from controlvae.lab.config.experiment import Training
from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.custom.batches import cast_batch, iter_tensors, map_tensors, select_input
from controlvae.lab.custom.checks import check_module
from controlvae.lab.custom.compilation import LossFunction, saves_time
from controlvae.lab.custom.examples import UserExamples, indexed_part, pixel_range
from controlvae.lab.custom.failures import summarise
from controlvae.lab.custom.feeds import make_feed
from controlvae.lab.custom.joining import join_ranks
from controlvae.lab.custom.noise import Noise, uses_python_randomness
from controlvae.lab.custom.optimiser import TorchOptimiser, name_of
from controlvae.lab.custom.probes import (
    check_factors,
    check_unit_range,
    check_validation,
    read_few,
    read_spread,
)
from controlvae.lab.custom.rate_trainer import CustomRateTrainer
from controlvae.lab.custom.recognise_data import Recognised, recognise_data
from controlvae.lab.custom.recognise_model import (
    AnyLikelihood,
    code_location,
    describe_model,
    recognise_model,
)
from controlvae.lab.custom.sources import StreamData
from controlvae.lab.custom.trainer import CustomTrainer, uses_channels_last
from controlvae.lab.data.validation_split import split_train_validation, without_skipped
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.lab.models.rate_conditioning import condition_on_rate
from controlvae.lab.ranks.gradients import keep_buffers
from controlvae.lab.ranks.group import ALONE, RankGroup, agree
from controlvae.lab.ranks.share import BatchShare
from controlvae.laws import Law

Note = Callable[[str], None]


@dataclass
class CustomTask:
    """What a user passed to `lab.fit`.

    Attributes:
        model: A module, or a class or function that returns one.
        data: The training data.
        likelihood: Likelihood of the reconstruction, a function, or None to infer it.
        inputs: Key, position or function that selects what `encode` takes from a batch.
        optimiser: A `torch.optim` class, or a function from parameters to an optimiser. None uses
            the settings of the experiment, which are Adam's.
        scheduler: Function from the optimiser to a learning-rate scheduler.
        validation: Data for validation. None holds out training examples, if any.
        factors: Ground-truth factors, (count, factors), or None.
        location: File and name of the user's code, for `controlvae resume --trust-code`.
        capture: Capture steps as CUDA graphs on a GPU.
        compile: Compile the model's loss terms. None does if it saves time.
        first_seed: Seed that keeps the weights a module was passed with. Other seeds initialise
            them again.
        in_place: Train a module itself, if it is the only one, instead of a copy.
        skips_corrupt: Accept data with NaN or infinity: the run repairs itself.
    """

    model: nn.Module | Callable[[], nn.Module]
    data: Recognised
    likelihood: AnyLikelihood | None = None
    inputs: Any = None
    optimiser: Any = None
    scheduler: Any = None
    validation: Recognised | None = None
    factors: Any = None
    location: str = ""
    capture: bool = True
    compile: bool | None = None
    first_seed: int = 1
    in_place: bool = False
    skips_corrupt: bool = False
    _reinitialised: set[str] = field(default_factory=set)

    def describe(
        self, name: str, law: Law, training: Training, adam: Adam, device: torch.device, note: Note
    ) -> Experiment:
        """Return the experiment that describes this task, after trying the model on one batch.

        Args:
            name: Name of the experiment.
            law: Law of the KL weight.
            training: Length of training, batches, logging and validation.
            adam: Learning rate and clipping.
            device: Device to train on.
            note: Receives what was inferred.

        Raises:
            UserError: If model and data do not fit the lab or each other.
        """
        data = self.data.data
        check_factors(self.factors, data)
        if training.validation and self.validation is None and isinstance(data, StreamData):
            raise UserError(
                "a stream cannot be split; pass validation=DATA, a data set for validation"
            )
        spread = read_spread(data, self.data.batch, self.skips_corrupt)
        module = self.make_module(training.seed, device)
        batch = self.example_batch(device)
        vae = recognise_model(module.train(), batch, self.likelihood, self.inputs, note)
        if vae.likelihood == "bernoulli":
            check_unit_range(data, spread, self.inputs)
        if self.validation is not None:
            held_out = read_few(self.validation.data, self.validation.batch)
            check_validation(vae, held_out, device)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), keep_buffers(module):
            latents = len(vae.losses(cast_batch(batch, vae.dtype), Noise(device)).kl_per_latent)
        likelihood = "own" if callable(vae.likelihood) else vae.likelihood
        return Experiment(
            name,
            about=f"{type(module).__name__} of the user",
            data=self.data.settings or self._describe_data(spread, vae),
            model=describe_model(vae, self._short_location(), latents),
            objective=Elbo(likelihood=likelihood),
            control=law,
            optimiser=self._describe_optimiser(adam),
            training=training,
        )

    @property
    def code_name(self) -> str:
        """Name of the model's code, as the experiment describes it."""
        return self._short_location()

    def _short_location(self) -> str:
        """Return where the model is defined, without folders: they may differ between machines."""
        if not self.location:
            return code_location(self.model)
        return Path(self.location).name

    def _describe_optimiser(self, adam: Adam) -> Adam | CustomOptimiser:
        """Return Adam's settings, or the name of another optimiser with its learning rate."""
        if self.optimiser is None and self.scheduler is None:
            return adam
        make = self.optimiser or torch.optim.Adam
        assert isinstance(adam.rate, float)
        return CustomOptimiser(
            name_of(make),
            rate=adam.rate if inspect.isclass(make) else None,
            scheduler="" if self.scheduler is None else name_of(self.scheduler),
            clip=adam.clip,
        )

    def _describe_data(self, examples: Any, vae: CustomVAE) -> CustomData:
        """Return the settings that describe the data, from examples from all over it."""
        data = self.data.data
        # Other models take whole batches and show no images.
        encodes = vae.form == "encode"
        x = select_input(cast_batch(examples, torch.float32), self.inputs) if encodes else examples
        is_tensor = isinstance(x, Tensor)
        return CustomData(
            source=data.source,
            kind=getattr(data, "kind", "arrays"),
            examples=None if isinstance(data, StreamData) else len(data),
            shape=tuple(x.shape[1:]) if is_tensor else (),
            pixels=pixel_range(x) if encodes and is_tensor else (),
        )

    def example_batch(self, device: torch.device) -> Any:
        """Return a few examples of the training data on a device."""
        batch = read_few(self.data.data, self.data.batch)
        return map_tensors(batch, lambda tensor: tensor.to(device))

    def make_module(
        self, seed: int, device: torch.device, *, copies: bool = False, initialise: bool = False
    ) -> nn.Module:
        """Return the user's model on a device.

        Args:
            seed: Seed of the initial weights, if the model is made by a class or function.
            device: Device of the weights.
            copies: Return a copy of a module.
            initialise: Initialise the weights of the copy from the seed.

        Raises:
            UserError: If the class or function does not return a module.
        """
        if isinstance(self.model, nn.Module):
            check_module(self.model)
            module = copy.deepcopy(self.model) if copies else self.model
            if copies and initialise:
                self._initialise(module, seed)
            return module.to(device)
        if not callable(self.model):
            raise UserError(f"model must be a torch.nn.Module or a function, got {self.model!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self._call_model()
        if not isinstance(made, nn.Module):
            raise UserError(f"model={name_of(self.model)} must return a module, got {made!r}")
        check_module(made)
        return made.to(device)

    def recover_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Give a module that is trained in place the weights of a checkpoint, if its own are NaN.

        Args:
            tensors: Tensors of the checkpoint.
        """
        if not self.in_place or not isinstance(self.model, nn.Module):
            return
        self.model.zero_grad(set_to_none=True)  # gradients of NaN would be added to
        state = self.model.state_dict()
        if not all(bool(torch.isfinite(value).all()) for value in state.values()):
            self.model.load_state_dict(strip_prefix(dict(tensors), "model."))

    def _call_model(self) -> Any:
        name = name_of(self.model)
        try:
            inspect.signature(self.model).bind()
        except TypeError as error:
            raise UserError(
                f"model={name} must work without arguments ({error}); "
                "pass an instance, or a function such as lambda: VAE(latents=10)"
            ) from None
        except ValueError:  # no signature is known
            pass
        try:
            return self.model()
        except Exception as error:
            raise UserError(
                f"model={name} failed: {summarise(error)}; it must work without arguments"
            ) from error

    def _initialise(self, module: nn.Module, seed: int) -> None:
        """Initialise the layers of a copy from a seed, and remember weights that stay."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for path, layer in module.named_modules():
                if callable(getattr(layer, "reset_parameters", None)):
                    layer.reset_parameters()
                else:
                    own = (name for name, _ in layer.named_parameters(recurse=False))
                    self._reinitialised |= {f"{path}.{name}".lstrip(".") for name in own}

    def make_vae(
        self,
        experiment: Experiment,
        device: torch.device,
        *,
        copies: bool = False,
        initialise: bool = False,
    ) -> CustomVAE:
        """Return the model of an experiment behind the lab's interface.

        Args:
            experiment: Experiment that describes this task.
            device: Device of the model.
            copies: Return a copy of a module.
            initialise: Initialise the weights of the copy from the experiment's seed.

        Raises:
            UserError: If the model is not the one that the experiment describes.
        """
        settings = experiment.model
        assert isinstance(settings, CustomModel)
        module = self.make_module(
            experiment.training.seed, device, copies=copies, initialise=initialise
        )
        if (rates := experiment.rates) is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(experiment.training.seed)
                condition_on_rate(module, rates.knots, rates.features)
        likelihood = experiment.objective.likelihood
        given = self.likelihood if likelihood == "own" else likelihood
        batch = self.example_batch(device)
        vae = recognise_model(module.train(), batch, given, self.inputs)
        vae.output = settings.output
        vae.reconstruction_scale = settings.reconstruction_scale
        vae.allows_half = experiment.training.half == "own"
        return vae

    def make_trainers(
        self,
        experiments: Sequence[Experiment],
        device: torch.device,
        note: Note,
        group: RankGroup = ALONE,
        sharded: bool = False,
    ) -> list[CustomTrainer]:
        """Return one trainer per experiment.

        Args:
            experiments: Experiments that describe this task, equal except for seed and control.
            device: Device to train on.
            note: Receives messages for the user.
            group: Ranks that train the models together.
            sharded: Shard weights, gradients and moments over the ranks with FSDP2.
        """
        conditioned = experiments[0].rates is not None
        if conditioned and not group.is_alone:
            raise UserError("a rate-conditioned model is trained by one process: leave out devices")
        copies = len(experiments) > 1 or not self.in_place or sharded or conditioned
        data = self.data.data.to(device)
        compiles = self.compile
        if compiles is None:
            compiles = saves_time(experiments, device)
        compiles = compiles and group.is_alone  # collectives cannot be compiled
        trainers = []
        for experiment in experiments:
            with agree(group):
                initialise = experiment.training.seed != self.first_seed
                vae = self.make_vae(experiment, device, copies=copies, initialise=initialise)
                batch = cast_batch(self.example_batch(device), vae.dtype)
                with torch.random.fork_rng(devices=[]), torch.no_grad(), keep_buffers(vae.module):
                    compute_losses = partial(vae.losses, batch, Noise(device, vae.dtype))
                    in_python = uses_python_randomness(compute_losses)
                training, share = experiment.training, BatchShare(group.rank, group.size)
                subset = self.training_indices(experiment)
                feed = make_feed(data, training.batch, training.seed, device, subset, share)
            if uses_channels_last(vae.module, device):  # before the optimiser copies the layout
                vae.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            joined = None if group.is_alone else join_ranks(vae, batch, share, group, sharded)
            optimiser = self._make_optimiser(experiment, vae.module, device)
            loss_function = LossFunction(vae, compiles, note)
            trainer_class = CustomRateTrainer if conditioned else CustomTrainer
            trainer = trainer_class(
                experiment, vae, feed, optimiser, in_python, loss_function, share
            )
            if joined is not None:
                trainer.connect_ranks(joined.wrapped, joined.unused)
            trainers.append(trainer)
        if self._reinitialised:
            names = ", ".join(sorted(self._reinitialised)[:3])
            note(
                f"all seeds start with the same {names}: the model has no reset_parameters for "
                "them; pass a function that returns a new model instead of a module"
            )
        return trainers

    def _make_optimiser(
        self, experiment: Experiment, module: nn.Module, device: torch.device
    ) -> NetworkOptimiser | TorchOptimiser:
        settings = experiment.optimiser
        if isinstance(settings, Adam):
            return NetworkOptimiser(module, settings, device)
        make = self.optimiser or torch.optim.Adam
        return TorchOptimiser(module, make, settings.rate, self.scheduler, settings.clip)

    def data_digest(self) -> str:
        """Return a digest of the number of examples and of some from all over the data."""
        data = self.data.data
        digest = hashlib.sha256(data.fingerprint().encode())
        spread = read_spread(data, self.data.batch, drop_corrupt=True)
        for path, tensor in iter_tensors(spread):
            digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def training_indices(self, experiment: Experiment) -> Tensor | None:
        """Return the indices to train on, or None if no training examples are held out."""
        data, share = self.data.data, experiment.training.validation
        if isinstance(data, StreamData):
            return None
        chosen = None
        if share and self.validation is None:
            chosen = split_train_validation(len(data), share)[0]
        return without_skipped(chosen, experiment.training.skip, len(data))

    def examples(self, experiment: Experiment, device: torch.device) -> UserExamples:
        """Return the training examples as evaluation and plots read them."""
        return self._as_examples(experiment, self.data, device, "training data")

    def data_metadata(self, experiment: Experiment) -> str:
        """Return the shape of an example and the source of the data as JSON."""
        settings = experiment.data
        shape, pixels = getattr(settings, "shape", ()), getattr(settings, "pixels", ())
        content = {"shape": shape, "pixels": pixels, "source": self.data.data.source}
        return json.dumps(content)

    def validation_examples(
        self, experiment: Experiment, device: torch.device
    ) -> tuple[UserExamples, Tensor] | None:
        """Return validation examples and their indices, or None if there are none."""
        share = experiment.training.validation
        if self.validation is not None:
            found = self._as_examples(experiment, self.validation, device, "validation data")
            return found, torch.arange(len(found), device=device)
        if not share or isinstance(self.data.data, StreamData):
            return None
        found = replace(self.examples(experiment, device), split="held out for validation")
        return found, split_train_validation(len(found), share)[1].to(device)

    def _as_examples(
        self, experiment: Experiment, source: Recognised, device: torch.device, split: str
    ) -> UserExamples:
        settings, data = experiment.data, indexed_part(source.data)
        shape, pixels = getattr(settings, "shape", ()), getattr(settings, "pixels", ())
        if not isinstance(settings, CustomData):  # a data set that the lab loads
            shape, pixels = data.shape, (0.0, 1.0)  # type: ignore[union-attr]
        factors = None if self.factors is None else np.asarray(self.factors)
        names = (
            tuple(f"factor {n + 1}" for n in range(factors.shape[1])) if factors is not None else ()
        )
        return UserExamples(
            data, shape, pixels, self.inputs, split=split, factors=factors, factor_names=names
        ).to(device)


def make_task(
    model: Any,
    dataset: Any,
    experiment: Experiment | None = None,
    *,
    batch: int | None = None,
    validation: Any = None,
    workers: int | None = None,
    cache: bool = False,
    root: Path | None = None,
    **options: Any,
) -> CustomTask:
    """Return the task of a model and its data.

    Args:
        model: Module, class or function.
        dataset: Data in any accepted form.
        experiment: Experiment that was trained with them, if there is one.
        batch: Number of examples in a batch.
        validation: Data for validation, or None.
        workers: Processes that fetch batches.
        cache: Keep a data set in memory after reading it once.
        root: Data folder that is searched first.
        **options: Further fields of the task.

    Raises:
        UserError: If the data has no accepted form.
    """
    if experiment is not None:
        batch = batch or experiment.training.batch
    if dataset is None:
        raise UserError("a user-supplied model needs its data too: pass dataset=")
    data = recognise_data(dataset, batch, workers=workers, cache=cache, root=root)
    held_out = None
    if validation is not None:
        held_out = recognise_data(validation, data.batch, workers=workers, cache=cache, root=root)
    return CustomTask(model, data, validation=held_out, **options)


# Tasks of run folders that this process trained or loaded.
_TASKS: dict[Path, CustomTask] = {}


def remember_task(folder: Path, task: CustomTask) -> None:
    """Let later calls in this process find the user's code of a run folder."""
    _TASKS[folder.resolve()] = task


def recall_task(folder: Path) -> CustomTask | None:
    """Return the user's code of a run folder, if this process has it."""
    return _TASKS.get(folder.resolve())
