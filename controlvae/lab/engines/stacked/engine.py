"""The stacked engine: a whole training step of many models as one CUDA graph, replayed with the host looking away.

Sampling, forward, objective, controller, backward, optimiser and the record of measurements all live on the device;
the host prepares a block of batches now and then, and reads measurements once per call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.distributions import Posterior
from controlvae.lab.config import Experiment, Likelihood
from controlvae.lab.data.dataset import ImageDataset
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.measurements import row_width
from controlvae.lab.engines.rng import (
    make_batch_orders,
    noise_key,
    noise_shape,
    normal_noise,
    random_permutations,
)
from controlvae.lab.engines.stacked.critic import Judged, StackedCritic
from controlvae.lab.engines.stacked.loader import make_feed
from controlvae.lab.engines.stacked.network import StackedVAE
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.models import build, build_critic
from controlvae.lab.models.base import VAE
from controlvae.lab.objectives import (
    CriticOutput,
    Divergence,
    Objective,
    ObjectiveInputs,
    Terms,
    compute_divergence,
)
from controlvae.lab.objectives.likelihood import pixel_nll
from controlvae.lab.objectives.total_correlation import (
    critic_accuracy,
    critic_loss_gradient,
    shuffle_latents,
)
from controlvae.laws import Schedule
from controlvae.laws.backend import TENSORS

_WARM_UP = 3
_AT_ONCE = 16  # steps whose noise is made together: it takes twelve times its size in passing


class StackedEngine:
    """Trains many models of one shape side by side; each has its own weights, law, batches and random stream."""

    def __init__(
        self, experiments: Sequence[Experiment], examples: ImageDataset, device: torch.device
    ) -> None:
        first, count = experiments[0], len(experiments)
        _check_size(first, examples.shape)
        self.device = device
        self.experiment = first  # what they share: all but seed and control
        models = [build(experiment, examples) for experiment in experiments]
        assert isinstance(models[0], VAE)
        self.network = StackedVAE(models[0], count, first.training.precision, device)
        self.trained = {
            "": (self.network.parameters, first.optimiser)
        }  # by their prefix in a snapshot
        for number, model in enumerate(models):
            self.network.parameters.load(number, {"weight": dict(model.named_parameters())})
        self.critic: StackedCritic | None = None
        critic_spec = first.objective.critic_spec()
        if critic_spec is not None:
            critics = [build_critic(experiment) for experiment in experiments]
            self.critic = StackedCritic(critics[0], count, first.training.precision, device)
            self.trained["critic."] = (self.critic.parameters, critic_spec.optimiser)
            for number, critic in enumerate(critics):
                self.critic.parameters.load(number, {"weight": dict(critic.named_parameters())})
        self.rates = {
            prefix: torch.full((1,), adam.at(1.0), device=device)
            for prefix, (_, adam) in self.trained.items()
        }
        laws = [experiment.control for experiment in experiments]
        self.control = Controller(laws, sync_ranks=False, delayed=first.training.delayed).to(device)
        by_reconstruction = [law.holds_reconstruction for law in laws]
        self.by_reconstruction = (
            torch.tensor(by_reconstruction, device=device) if any(by_reconstruction) else None
        )
        examples = examples.to(device)
        order = [make_batch_orders(experiment, examples) for experiment in experiments]
        self.feed = make_feed(examples, order, device)
        self.keys = torch.tensor([noise_key(e.training.seed) for e in experiments], device=device)
        bounds = [experiment.control.bounds for experiment in experiments]
        self.low, self.high = torch.tensor(bounds, dtype=torch.float64, device=device).unbind(1)
        steps = self.feed.block_steps
        self.noise = torch.zeros(steps, count, *noise_shape(first), device=device)
        self.rows = torch.zeros(steps, count, row_width(first), dtype=torch.float64, device=device)
        self.ones = torch.ones(count, device=device)
        self.clock = torch.zeros(
            2, dtype=torch.int64, device=device
        )  # position within the block, steps in all
        self.step = 0
        self._loaded_block = -1
        # Dozens of operations on a handful of numbers: fused, they are a few kernels. Another engine's compilations
        # are forgotten first: they would count as recompilations of the same functions, and Dynamo allows eight.
        torch._dynamo.reset()
        self._steer, self._record = (
            _fused(self.control.step, device),
            _fused(self._write_row, device),
        )
        self.aside = Aside(device)
        self._latent = _fused(_latent, device)
        self._reconstruction = _fused(_reconstruction(first.objective.likelihood), device)
        terms = _objective_terms(first.objective, order[0][0].count)
        self._objective_terms = _fused(terms, device) if first.objective.compile_terms else terms
        self.has_kl_weights = bool(first.objective.kl_weights_at(first.model.latents, 1.0))
        self._kl_weights = _fused(_kl_weights(first), device)
        self._second_latent, self._critic_step = (
            _fused(_second_latent, device),
            _fused(_critic_step(first.objective), device),
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    def advance(self, steps: int) -> Tensor:
        """Takes so many steps with every model. Measurements: (steps, models, columns), on the host.

        The one place that waits for the device.
        """
        measured = []
        while steps > 0:
            block, position = divmod(self.step, self.feed.block_steps)
            if block != self._loaded_block:
                self._load_block(block, position)
            replay = self._captured().replay if self.device.type == "cuda" else self._training_step
            now = min(steps, self.feed.block_steps - position)
            for _ in range(now):
                replay()
            measured.append(self.rows[position : position + now].clone())
            self.step += now
            steps -= now
            self.feed.prepare(block + 1)  # on the host, while the device is busy
        return torch.cat(measured).cpu()

    def _training_step(self) -> None:
        position, counter = self.clock[:1], self.clock[1:]
        x, target = self.feed.pictures(position, 0, self.network.maps)
        encoded = self.network.encode(x)
        z, divergence = self._latent(encoded, self.noise, position)
        terms, critic_gradient = self._terms(divergence, encoded, z, position)
        measured = terms.controlled.detach()
        if self.by_reconstruction is None:
            with self.aside():  # while the decoder works
                beta = self._steer(measured)
        reconstruction = self._reconstruction(
            self.network.decode(z), target, self.network.pixel_log_variance()
        )
        if self.by_reconstruction is None:
            self.aside.join()
        else:
            beta = self._steer(
                torch.where(self.by_reconstruction, reconstruction.detach(), measured)
            )
        with self.aside():  # while the gradients are computed
            kl, per_latent = (term.detach() for term in terms.divergence)
            weight = beta if self.control.delayed else self.control.state.beta
            self._record(reconstruction.detach(), kl, per_latent, weight, terms.extras)
        # The loss, reconstruction + given + β · held, is never formed: its gradient at each of them is known.
        paid, weights = [reconstruction, terms.controlled], [self.ones, beta]
        if isinstance(terms.uncontrolled, Tensor):
            paid, weights = [*paid, terms.uncontrolled], [*weights, self.ones]
        torch.autograd.backward(paid, weights)
        if self.critic is not None and critic_gradient is not None:
            self.critic.weight_gradients(critic_gradient)
        for prefix, (parameters, adam) in self.trained.items():
            if isinstance(adam.rate, Schedule):
                self.rates[prefix].copy_(adam.at(counter.double() + 1, TENSORS))
            parameters.step(counter, self.rates[prefix], adam.beta1, adam.beta2)
        self.aside.join()
        self.clock += 1

    def _terms(
        self, divergence: Divergence, encoded: Tensor, z: Tensor, position: Tensor
    ) -> tuple[Terms, Tensor | None]:
        """The terms of the objective, and the gradient of the critic's loss at its logits where there is one."""
        if self.critic is not None:
            with torch.no_grad():
                second, _ = self.feed.pictures(position, 1, self.network.maps)
                independent = self._second_latent(self.network.encode(second), self.noise, position)
            joint, other = Judged.apply(z, independent, self.critic)
            return self._critic_step(divergence, joint, other)
        kl_weights = self._kl_weights(self.clock[1:].double() + 1) if self.has_kl_weights else None
        return self._objective_terms(divergence, encoded, z, kl_weights), None

    def _write_row(
        self,
        reconstruction: Tensor,
        kl: Tensor,
        per_latent: Tensor,
        beta: Tensor,
        extras: tuple[Tensor, ...],
    ) -> None:
        """This step's row of measurements, where the host will find it."""
        state = self.control.state
        saturated = (state.output < self.low) | (state.output > self.high)
        columns = [reconstruction, kl, state.target, beta, state.p, state.i, saturated, *extras]
        row = torch.cat(
            [torch.stack([c.double() for c in columns], dim=1), per_latent.double()], dim=1
        )
        self.rows.index_copy_(0, self.clock[:1], row.unsqueeze(0))

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The graph of one step, captured at the first call. Warming up leaves no trace in the state."""
        if self._graph is None:
            moving = [self.clock, *self.network.buffers.values()]
            moving += [
                buffer
                for parameters, _ in self.trained.values()
                for buffer in parameters.buffers().values()
            ]
            before = [value.clone() for value in moving]
            control = self.control.state_dict()
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self.clock[0] = (
                        0  # wherever in its block training goes on: these must not run past its end
                    )
                    self._training_step()
            torch.cuda.current_stream(self.device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._training_step()
            for value, kept in zip(moving, before, strict=True):
                value.copy_(kept)
            for parameters, _ in self.trained.values():
                parameters.round()
            self.control.load_state_dict(control)
        return self._graph

    def _load_block(self, block: int, position: int) -> None:
        self.feed.load(block)
        first, steps = block * self.feed.block_steps, self.feed.block_steps
        times = torch.arange(first, first + steps, device=self.device)
        for few, own in zip(times.split(_AT_ONCE), self.noise.split(_AT_ONCE), strict=True):
            own.copy_(normal_noise(self.keys[None], few[:, None], noise_shape(self.experiment)))
        if self.critic is not None:  # a sort is many kernels: once for the block, not in every step
            self.noise[:, :, 2] = random_permutations(self.noise[:, :, 2]).float()
        self.clock.copy_(torch.tensor([position, self.step]))
        self._loaded_block = block

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Everything of one model that moves, under the names the plain engine uses, on the host."""
        tensors: dict[str, Tensor] = {}
        for prefix, (parameters, _) in self.trained.items():
            tensors |= {
                prefix + name: value
                for name, value in _exported(parameters, model, self.step).items()
            }
        for name, buffer in self.network.buffers.items():
            tensors[f"model.{name}"] = buffer[model].cpu().clone()
            batches = (
                2 if self.critic is not None and name.startswith("encoder.") else 1
            )  # in a step
            tensors[f"model.{name.rsplit('.', 1)[0]}.num_batches_tracked"] = torch.tensor(
                batches * self.step
            )
        control = self.control.state_dict()
        return tensors | {
            f"control.{name}": value[model].cpu().clone() for name, value in control.items()
        }

    def set_target(self, model: int, target: float) -> None:
        """Moves the set point of one model."""
        self.control.set_target(target, model)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Goes on from a snapshot, of this engine or of the plain one, in place."""
        kinds = {"weight": "model.", "exp_avg": "adam.exp_avg.", "exp_avg_sq": "adam.exp_avg_sq."}
        for prefix, (parameters, _) in self.trained.items():
            parameters.load(
                model, {kind: strip_prefix(tensors, prefix + own) for kind, own in kinds.items()}
            )
        for name, buffer in self.network.buffers.items():
            buffer[model].copy_(tensors[f"model.{name}"])
        control = self.control.state_dict()
        for name, value in strip_prefix(tensors, "control.").items():
            control[name][model] = value
        self.control.load_state_dict(control)
        self.step, self._loaded_block = step, -1


class Aside:
    """A second stream beside the main one, so that small work off the critical path costs a step nothing."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """What is queued within begins after all queued so far and runs beside what follows, until `join`."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def _check_size(experiment: Experiment, shape: tuple[int, int, int]) -> None:
    """Kernels count the values of one model's map in 32 bits."""
    channels, height, width = shape
    convolutions = enumerate(experiment.model.channels, start=1)  # type: ignore[union-attr]
    widths = (channels, *(wide / 4**layer for layer, wide in convolutions))
    if experiment.training.batch * height * width * max(widths) >= 2**31:
        raise ValueError(
            f"a batch of {experiment.training.batch} makes a map of over 2^31 values; lower training.batch"
        )


def _exported(parameters: Parameters, model: int, step: int) -> dict[str, Tensor]:
    """One model's weights and moments under the plain engine's names."""
    exported = parameters.export(model)
    tensors = {f"model.{name}": value for name, value in exported["weight"].items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        tensors |= {f"adam.{moment}.{name}": value for name, value in exported[moment].items()}
    return tensors | {f"adam.step.{name}": torch.tensor(float(step)) for name in exported["weight"]}


def _fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compiled on a GPU; as it is elsewhere, where the kernels run interpreted and only tests come by."""
    return (
        torch.compile(function, fullgraph=True, dynamic=False)
        if device.type == "cuda"
        else function
    )


# What is left between the large products, small enough to be fused by the compiler. Models come first throughout.


def _latent(encoded: Tensor, noise: Tensor, position: Tensor) -> tuple[Tensor, Divergence]:
    """A sample of z, (models, batch, latents), and its KL. noise: (steps, models, draws, batch, latents)."""
    posterior = Posterior.of(encoded)
    return posterior.sample(noise.index_select(0, position)[0, :, 0]), compute_divergence(posterior)


def _reconstruction(likelihood: Likelihood) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """-log p(x|z), averaged over the batch: (models,). Bytes are pictures in 255ths."""
    cost = pixel_nll(likelihood)

    def reconstruction(logits: Tensor, target: Tensor, log_variance: Tensor | None) -> Tensor:
        x = target.float() / 255 if target.dtype == torch.uint8 else target.float()
        return cost(logits, x, log_variance).mean(1)

    return reconstruction


def _objective_terms(objective: Objective, examples: int) -> Callable[..., Terms]:
    def terms(
        divergence: Divergence, encoded: Tensor, z: Tensor, kl_weights: Tensor | None
    ) -> Terms:
        """Return the terms of an objective without a critic."""
        posterior = Posterior.of(encoded)
        return objective.terms(ObjectiveInputs(divergence, posterior, z, examples, kl_weights))

    return terms


def _kl_weights(experiment: Experiment) -> Callable[[Tensor], Tensor]:
    objective, latents = experiment.objective, experiment.model.latents

    def kl_weights(step: Tensor) -> Tensor:
        """What a nat of each latent costs at a step, (1,): (latents,)."""
        return torch.cat(
            [0 * step + price for price in objective.kl_weights_at(latents, step, TENSORS)]
        ).float()

    return kl_weights


def _second_latent(encoded: Tensor, noise: Tensor, position: Tensor) -> Tensor:
    """The second batch's z, every latent shuffled across it: of the draws of noise the third is an order."""
    noise = noise.index_select(0, position)[0]
    z = Posterior.of(encoded).sample(noise[:, 1])
    return shuffle_latents(z, noise[:, 2].long())


def _critic_step(objective: Objective) -> Callable[..., tuple[Terms, Tensor]]:
    def terms_and_gradient(
        divergence: Divergence, joint: Tensor, other: Tensor
    ) -> tuple[Terms, Tensor]:
        """Return the terms, and the gradient of the critic's loss at its logits.

        The gradient has the rows of z first, then the shuffled ones.
        """
        judged = joint.detach(), other
        output = CriticOutput(joint, critic_accuracy(*judged))
        terms = objective.terms(ObjectiveInputs(divergence, critic=output))
        return terms, torch.cat(critic_loss_gradient(*judged), dim=1)

    return terms_and_gradient
