"""The plain engine: each model steps in turn, operation by operation. Runs anywhere; the reference for faster ones."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as adam_step

from controlvae.controller import Controller
from controlvae.distributions import Posterior
from controlvae.lab.config import (
    Adam,
    BagOfWords,
    BetaTC,
    DialogVAEConfig,
    Elbo,
    Experiment,
    TextVAEConfig,
    TotalCorrelation,
)
from controlvae.lab.config.objectives import ObjectiveSettings
from controlvae.lab.data.bucketing import BucketOrder, Width
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.cpu import keep_freed_memory, one_thread
from controlvae.lab.engines.dropout import Masks
from controlvae.lab.engines.measurements import width as row_width
from controlvae.lab.engines.precision import products_in
from controlvae.lab.engines.rng import noise_key, normal_noise
from controlvae.lab.engines.sampling import block_indices, noise_shape, orders, shuffling
from controlvae.lab.models import Model, TextVAE, build, build_critic
from controlvae.lab.objectives import Terms, bag_terms, divergence, elbo_terms, reconstruction_of
from controlvae.lab.objectives.text import bag_of_words, token_nll
from controlvae.lab.objectives.total_correlation import (
    critic_accuracy,
    critic_loss,
    critic_terms,
    minibatch_terms,
    shuffled,
)
from controlvae.laws import Schedule

_SMALL = 128  # a text model up to this width is trained on one thread of a CPU


class _Moved(NamedTuple):
    """A parameter and what Adam keeps of it."""

    value: nn.Parameter
    kept: dict[str, Tensor]


class Network:
    """A module and the Adam that moves it.

    Torch's arithmetic of Adam without its optimiser, whose first use imports all of its compiler: two seconds and more.
    """

    def __init__(self, module: nn.Module, adam: Adam, device: torch.device) -> None:
        self.module, self.adam = module.to(device), adam
        self.fused = device.type in ("cpu", "cuda")
        self.rate: float | Tensor = adam.at(1.0)
        if isinstance(adam.rate, Schedule) and device.type == "cuda":
            self.rate = torch.tensor(
                self.rate, device=device
            )  # a captured step reads it where it is
        self.trainable = {
            name: _Moved(
                value,
                {
                    "step": torch.zeros((), dtype=torch.float32, device=device),
                    # In the parameter's own memory layout, which the fused form relies on.
                    "exp_avg": torch.zeros_like(value, requires_grad=False),
                    "exp_avg_sq": torch.zeros_like(value, requires_grad=False),
                },
            )
            for name, value in module.named_parameters()
            if value.requires_grad
        }

    def prepare(self, number: int) -> None:
        """Sets the rate of a step, where it is scheduled; steps count from zero."""
        if not isinstance(self.adam.rate, Schedule):
            return
        rate = self.adam.at(number + 1.0)
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def backward_and_step(self, loss: Tensor) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None
        loss.backward()
        if self.adam.clip is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.adam.clip)
        values: list[Tensor] = []
        gradients: list[Tensor] = []
        kept: list[dict[str, Tensor]] = []
        for each in self.trainable.values():
            if each.value.grad is not None:  # the loss may leave some out
                values.append(each.value)
                gradients.append(each.value.grad)
                kept.append(each.kept)
        with torch.no_grad():
            adam_step(
                values,
                gradients,
                [of["exp_avg"] for of in kept],
                [of["exp_avg_sq"] for of in kept],
                [],
                [of["step"] for of in kept],
                fused=self.fused,
                amsgrad=False,
                beta1=self.adam.beta1,
                beta2=self.adam.beta2,
                lr=self.rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    def snapshot(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        for name, each in self.trainable.items():
            tensors |= {f"adam.{what}.{name}": value for what, value in each.kept.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.module.load_state_dict(strip_prefix(tensors, "model."))
        for name, each in self.trainable.items():
            for what, value in each.kept.items():
                value.copy_(tensors[f"adam.{what}.{name}"])


class ModelTrainer:
    """One model with its optimiser, controller, batch orders and random stream."""

    def __init__(self, experiment: Experiment, examples: Dataset, device: torch.device) -> None:
        self.experiment = experiment
        self.examples = examples
        self.model = build(experiment, examples)
        if isinstance(examples, ImageDataset):
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.networks = {
            "": Network(self.model, experiment.optimiser, device)
        }  # by their prefix in a snapshot
        self.control = Controller(
            experiment.control, sync_ranks=False, delayed=experiment.training.delayed
        )
        self.reconstruction = reconstruction_of(experiment.objective)
        self.orders = orders(experiment, examples)
        self.key = torch.tensor(noise_key(experiment.training.seed), device=device)
        self.kl_weights: Tensor | None = None
        if isinstance(experiment.objective, Elbo) and experiment.objective.kl_weights:
            self.kl_weights = torch.tensor(
                experiment.objective.kl_weights_at(experiment.model.latents, 1.0)
            ).to(device)

    def advance(self, first: int, steps: int) -> Tensor:
        """Takes so many steps from the step `first`; returns their rows of measurements, (steps, columns)."""
        indices, noise = self.draw_randomness(first, steps)
        return torch.stack(
            [self.step(self.prepare(first + t), indices[t], noise[t]) for t in range(steps)]
        )

    def draw_randomness(self, first: int, steps: int) -> tuple[Tensor, Tensor]:
        """The examples of so many steps, (steps, batches, batch), and their noise, (steps, draws, batch, latents).

        For all steps at once: many small operations become a few.
        """
        times = torch.arange(first, first + steps, device=self.key.device)
        noise = normal_noise(self.key, times, noise_shape(self.experiment))
        return block_indices(self.orders, first, steps).to(self.key.device), noise

    def prepare(self, number: int) -> Width:
        """What the host does before a step. Returns the width of its batch: steps of one width have one shape."""
        for network in self.networks.values():
            network.prepare(number)
        self._set_kl_weights(number)
        return self.examples.shape[-1]

    def _set_kl_weights(self, number: int) -> None:
        """What the latents of a step pay, where that is scheduled; where a captured step reads it, without waiting."""
        objective = self.experiment.objective
        if self.kl_weights is None or not isinstance(objective, Elbo):
            return
        if any(isinstance(price, Schedule) for price in objective.kl_weights):
            now = torch.tensor(objective.kl_weights_at(len(self.kl_weights), number + 1.0))
            self.kl_weights.copy_(
                now.pin_memory() if self.kl_weights.is_cuda else now, non_blocking=True
            )

    def step(self, width: Width, indices: Tensor, noise: Tensor) -> Tensor:
        """One optimiser step on indices (batches, batch) and noise (draws, batch, latents). All on the device."""
        x = self.inputs(width, indices[0])
        posterior = self.encode(x)
        z = posterior.sample(noise[0])
        reconstruction = self.reconstruct(z, x, posterior).mean()
        terms, further = self.terms(x, posterior, z, indices, noise)
        measured = (
            reconstruction if self.experiment.control.holds_reconstruction else terms.held
        ).detach()
        # On the host's own memory a Python number is the cheaper way in; on a device it would wait for it.
        on_host = measured.device.type == "cpu"
        beta: float | Tensor = (
            self.control.step(measured.item()) if on_host else self.control.step(measured)
        )
        self.networks[""].backward_and_step(reconstruction + terms.given + beta * terms.held)
        for name, loss in further.items():
            self.networks[name].backward_and_step(loss)
        return self._row(
            reconstruction.detach(),
            terms,
            beta if self.control.delayed else self.control.state.beta,
        )

    def terms(
        self, x: Any, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor
    ) -> tuple[Terms, dict[str, Tensor]]:
        """What the objective makes of the code, and the losses of networks beside the model, by their prefixes."""
        objective, trained_on = self.experiment.objective, self.orders[0].count
        return code_terms(objective, self.model, x, posterior, z, trained_on, self.kl_weights), {}

    def inputs(self, width: Width, indices: Tensor) -> Any:
        """The batch of a step."""
        return _channels_last(self.examples.batch(indices))

    def encode(self, x: Any) -> Posterior:
        return self.model.encode(x)

    def reconstruct(self, z: Tensor, x: Any, posterior: Posterior) -> Tensor:
        """What is left of x to say once z is known, in nats per example: (batch,)."""
        return self.reconstruction(self.model, z, x, posterior.given)

    def _row(self, reconstruction: Tensor, terms: Terms, beta: float | Tensor) -> Tensor:
        state, (low, high) = self.control.state, self.control.laws[0].bounds
        saturated = (state.output < low) | (state.output > high)
        kl, kl_per_latent = terms.divergence
        values = (reconstruction, kl.detach(), state.target, beta, state.p, state.i)
        device = self.key.device
        row = [
            torch.as_tensor(v, dtype=torch.float64, device=device).reshape(1)
            for v in (*values, saturated, *terms.extras)
        ]
        return torch.cat([*row, kl_per_latent.detach().double()])


def code_terms(
    objective: ObjectiveSettings,
    model: Model,
    x: Any,
    posterior: Posterior,
    z: Tensor,
    examples: int,
    kl_weights: Tensor | None = None,
) -> Terms:
    """What an objective without a critic makes of the code."""
    match objective:
        case BetaTC():
            return minibatch_terms(divergence(posterior), posterior, z, examples)
        case BagOfWords(weight):
            logits = model.bag_logits(z, x, posterior.given)  # type: ignore[operator]
            return bag_terms(divergence(posterior), bag_of_words(logits, x.response), weight)
        case Elbo(free_bits=floor):
            return elbo_terms(divergence(posterior), floor, kl_weights)
    raise TypeError(f"no terms for {objective!r}")


class CriticTrainer(ModelTrainer):
    """A model beside the critic that estimates its total correlation; they take turns in every step."""

    def __init__(self, experiment: Experiment, examples: Dataset, device: torch.device) -> None:
        super().__init__(experiment, examples, device)
        assert isinstance(experiment.objective, TotalCorrelation)
        self.critic = build_critic(experiment)
        self.networks["critic."] = Network(
            self.critic, experiment.objective.critic_optimiser, device
        )

    def terms(
        self, x: Any, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor
    ) -> tuple[Terms, dict[str, Tensor]]:
        with torch.no_grad():
            other = self.encode(self.inputs(0, indices[1])).sample(noise[1])
        joint, independent = (
            self.critic(z.detach()),
            self.critic(shuffled(other, shuffling(noise[2]))),
        )
        accuracy = critic_accuracy(joint, independent)
        terms = critic_terms(divergence(posterior), self.critic(z), accuracy)
        return terms, {"critic.": critic_loss(joint, independent)}


class SequenceTrainer(ModelTrainer):
    """A model of sentences or dialogs: batches of like length, each as wide as it must be."""

    def prepare(self, number: int) -> Width:
        super().prepare(number)
        order = self.orders[0]
        assert isinstance(order, BucketOrder)
        return order.width(number)

    def inputs(self, width: Width, indices: Tensor) -> Any:
        assert isinstance(self.examples, SentenceDataset | DialogDataset)
        return self.examples.batch(indices, width)  # type: ignore[arg-type]


class SentenceTrainer(SequenceTrainer):
    """A model of sentences, with dropout."""

    model: TextVAE

    def __init__(self, experiment: Experiment, examples: Dataset, device: torch.device) -> None:
        super().__init__(experiment, examples, device)
        rate, training = self.model.dropout, experiment.training
        narrow = (
            torch.bfloat16
            if device.type == "cuda" and training.precision == "bf16"
            else torch.float32
        )
        self.masks = Masks(rate, training.seed, self._masks_of, device, narrow) if rate else None

    def prepare(self, number: int) -> Width:
        width = super().prepare(number)
        if self.masks is not None:
            self.masks.draw(number, width)
        return width

    def encode(self, x: Tensor) -> Posterior:
        return self.model.encode(x, self.masks)

    def reconstruct(self, z: Tensor, x: Tensor, posterior: Posterior) -> Tensor:
        return token_nll(self.model.decode(z, x, self.masks), x)

    @torch.no_grad()
    def _masks_of(self, width: Width) -> int:
        """How many values dropout meets in a step of this width: counted, once, on a batch of nothing."""
        sizes = []

        def count(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        shape = (self.experiment.training.batch, width)
        nothing = torch.zeros(shape, dtype=torch.int64, device=self.key.device)  # type: ignore[arg-type]
        self.model.decode(self.model.encode(nothing, count).mean, nothing, count)
        return sum(sizes)


class EagerEngine:
    """Trains models one after the other, step by step."""

    def __init__(
        self, experiments: Sequence[Experiment], examples: Dataset, device: torch.device
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        examples = examples.to(device)
        self.small = device.type == "cpu" and _widest(experiments[0]) <= _SMALL
        kind = _kind(experiments[0], examples)
        self.learners = [kind(experiment, examples, device) for experiment in experiments]
        self.precision = experiments[0].training.precision
        self.columns = row_width(experiments[0])
        self.step = 0

    def advance(self, steps: int) -> Tensor:
        """Takes so many steps with every model. Measurements: (steps, models, columns), on the host.

        The one place that waits for the device.
        """
        threads = one_thread() if self.small else nullcontext()
        with threads, products_in(self.precision, self.learners[0].key.device):
            rows = [learner.advance(self.step, steps) for learner in self.learners]
        self.step += steps
        return torch.stack(rows, dim=1).cpu()

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Everything of one model that moves, by name, on the host."""
        learner = self.learners[model]
        tensors = {
            prefix + name: value
            for prefix, network in learner.networks.items()
            for name, value in network.snapshot().items()
        }
        for name, value in learner.control.state_dict().items():
            tensors[f"control.{name}"] = torch.as_tensor(value, dtype=torch.float64)
        # Clones, because safetensors refuses shared memory; contiguous, because it stores no strides.
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

    def set_target(self, model: int, target: float) -> None:
        """Moves the set point of one model."""
        self.learners[model].control.set_target(target)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Goes on from a snapshot as if never stopped."""
        learner = self.learners[model]
        for prefix, network in learner.networks.items():
            network.restore(strip_prefix(tensors, prefix))
        learner.control.load_state_dict(
            {k: v.item() for k, v in strip_prefix(tensors, "control.").items()}
        )
        self.step = step


def _kind(experiment: Experiment, examples: Dataset) -> type[ModelTrainer]:
    match examples:
        case SentenceDataset():
            return SentenceTrainer
        case DialogDataset():
            return SequenceTrainer
    return CriticTrainer if isinstance(experiment.objective, TotalCorrelation) else ModelTrainer


def _widest(experiment: Experiment) -> float:
    """The widest layer of a model of text; one of pictures has work for every thread."""
    match experiment.model:
        case TextVAEConfig(width=width):
            return width
        case DialogVAEConfig(context=width):
            return width
    return math.inf


def _channels_last(x: Tensor) -> Tensor:
    """Pictures in the layout oneDNN and cuDNN like best.

    With one channel both layouts hold the same bytes and only the strides tell them apart; left to themselves they say
    channels first, and a rectifier's gradient then mixes layouts at forty times its cost.
    """
    _, channels, height, width = x.shape
    last = x.contiguous(memory_format=torch.channels_last)
    return last.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))
