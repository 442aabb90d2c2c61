"""Stacked engine: a training step of many models as one CUDA graph, replayed without the host.

Sampling, forward pass, objective, controller, backward pass, optimiser and the row of measurements
all run on the device. The host prepares a block of batches from time to time and reads the
measurements once per call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.distributions import Posterior
from controlvae.lab.config import Experiment, Likelihood
from controlvae.lab.data.dataset import ImageDataset
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.measurements import make_rows, row_width
from controlvae.lab.engines.rng import (
    make_batch_orders,
    noise_key,
    noise_shape,
    normal_noise,
    random_permutations,
)
from controlvae.lab.engines.stacked.critic import CriticLogits, StackedCritic
from controlvae.lab.engines.stacked.loader import make_loader
from controlvae.lab.engines.stacked.network import StackedVAE
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.engines.stacked.side_stream import SideStream
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

_WARM_UP_STEPS = 3
# Steps whose noise is drawn together: the generator needs twelve times the memory of its result.
_NOISE_STEPS = 16


class StackedEngine:
    """Trains models of one architecture together, each with its own weights, law and randomness.

    Args:
        experiments: Experiments that differ in nothing but seed and law.
        examples: Images that all models are trained on.
        device: CUDA device; a CPU works under Triton's interpreter, for tests.
    """

    def __init__(
        self, experiments: Sequence[Experiment], examples: ImageDataset, device: torch.device
    ) -> None:
        first, count = experiments[0], len(experiments)
        _check_map_size(first, examples.shape)
        self.device = device
        self.experiment = first  # the settings that all models share
        self._build_models(experiments, examples)
        self.rates = {
            prefix: torch.full((1,), adam.at(1.0), device=device)
            for prefix, (_, adam) in self.trained.items()
        }
        laws = [experiment.control for experiment in experiments]
        # The logs have the facts of a monitor, and a captured step should not get slower.
        control = Controller(laws, sync_ranks=False, delayed=first.training.delayed, monitor=False)
        self.control = control.to(device)
        self.low, self.high = torch.tensor(
            [law.bounds for law in laws], dtype=torch.float64, device=device
        ).unbind(1)
        # None, or for each model whether its law controls the reconstruction instead of the KL.
        by_reconstruction = [law.controls_reconstruction for law in laws]
        self.by_reconstruction = (
            torch.tensor(by_reconstruction, device=device) if any(by_reconstruction) else None
        )
        examples = examples.to(device)
        order = [make_batch_orders(experiment, examples) for experiment in experiments]
        self.loader = make_loader(examples, order, device)
        self.keys = torch.tensor([noise_key(e.training.seed) for e in experiments], device=device)
        steps = self.loader.block_steps
        self.noise = torch.zeros(steps, count, *noise_shape(first), device=device)
        self.rows = torch.zeros(steps, count, row_width(first), dtype=torch.float64, device=device)
        self.ones = torch.ones(count, device=device)
        # Position within the block, and steps since the start of training.
        self.clock = torch.zeros(2, dtype=torch.int64, device=device)
        self.step = 0
        self._loaded_block = -1
        self.side_stream = SideStream(device)
        self._compile_functions(order[0][0].count)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _build_models(self, experiments: Sequence[Experiment], examples: ImageDataset) -> None:
        """Build the networks, and the critics of FactorVAE, with the PyTorch initial weights."""
        first, count, device = self.experiment, len(experiments), self.device
        models = [build(experiment, examples) for experiment in experiments]
        assert isinstance(models[0], VAE)
        self.network = StackedVAE(models[0], count, first.training.precision, device)
        # Parameters and their optimiser, by their prefix in a snapshot.
        self.trained = {"": (self.network.parameters, first.adam)}
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

    def _compile_functions(self, examples: int) -> None:
        """Compile the small functions: dozens of operations become a few fused kernels."""
        first, device = self.experiment, self.device
        # Drop the compilations of other engines: they would count as recompilations of the same
        # functions, of which Dynamo allows eight.
        torch._dynamo.reset()
        self._control_step = _compiled(self.control.step, device)
        self._record_row = _compiled(self._write_row, device)
        self._latent = _compiled(_latent, device)
        self._reconstruction = _compiled(_reconstruction(first.objective.likelihood), device)
        terms = _objective_terms(first.objective, examples)
        self._objective_terms = _compiled(terms, device) if first.objective.compile_terms else terms
        logged = _logged(first.objective, examples)
        self._logged = _compiled(logged, device) if first.objective.compile_terms else logged
        self.has_kl_weights = bool(first.objective.kl_weights_at(first.model.latents, 1.0))
        self._kl_weights = _compiled(_kl_weights(first), device)
        self._second_latent = _compiled(_second_latent, device)
        self._critic_step = _compiled(_critic_step(first.objective), device)

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps and return (steps, models, columns) on the host.

        This is the one place that waits for the device.
        """
        measured = []
        while steps > 0:
            block, position = divmod(self.step, self.loader.block_steps)
            if block != self._loaded_block:
                self._load_block(block, position)
            replay = self._captured().replay if self.device.type == "cuda" else self._training_step
            count = min(steps, self.loader.block_steps - position)
            for _ in range(count):
                replay()
            measured.append(self.rows[position : position + count].clone())
            self.step += count
            steps -= count
            self.loader.prepare(block + 1)  # on the host, while the device is busy
        return torch.cat(measured).cpu()

    def _training_step(self) -> None:
        position, counter = self.clock[:1], self.clock[1:]
        x, target = self.loader.read_batch(position, 0, self.network.map_dtype)
        encoded = self.network.encode(x)
        z, divergence = self._latent(encoded, self.noise, position)
        terms, critic_gradient = self._terms(divergence, encoded, z, position)
        measured = terms.controlled.detach()
        if self.by_reconstruction is None:
            with self.side_stream.fork():  # concurrent with the decoder
                beta = self._control_step(measured)
        reconstruction = self._reconstruction(
            self.network.decode(z), target, self.network.pixel_log_variance()
        )
        if self.by_reconstruction is None:
            self.side_stream.join()
        else:
            beta = self._control_step(
                torch.where(self.by_reconstruction, reconstruction.detach(), measured)
            )
        with self.side_stream.fork():  # concurrent with the gradients
            kl, per_latent = (term.detach() for term in terms.divergence)
            weight = beta if self.control.delayed else self.control.state.beta
            self._record_row(reconstruction.detach(), kl, per_latent, weight, terms.extras)
        # The loss, reconstruction + uncontrolled + β · controlled, is never formed: its gradient
        # with respect to each term is known.
        outputs, weights = [reconstruction, terms.controlled], [self.ones, beta]
        if isinstance(terms.uncontrolled, Tensor):
            outputs, weights = [*outputs, terms.uncontrolled], [*weights, self.ones]
        torch.autograd.backward(outputs, weights)
        if self.critic is not None and critic_gradient is not None:
            self.critic.weight_gradients(critic_gradient)
        for prefix, (parameters, adam) in self.trained.items():
            if isinstance(adam.rate, Schedule):
                self.rates[prefix].copy_(adam.at(counter.double() + 1, TENSORS))
            parameters.step(counter, self.rates[prefix], adam.beta1, adam.beta2)
        self.side_stream.join()
        self.clock += 1

    def _terms(
        self, divergence: Divergence, encoded: Tensor, z: Tensor, position: Tensor
    ) -> tuple[Terms, Tensor | None]:
        """Return the terms of the objective and, with a critic, its loss gradient at the logits."""
        if self.critic is not None:
            with torch.no_grad():
                second, _ = self.loader.read_batch(position, 1, self.network.map_dtype)
                independent = self._second_latent(self.network.encode(second), self.noise, position)
            joint, other = CriticLogits.apply(z, independent, self.critic)
            return self._critic_step(divergence, joint, other)
        kl_weights = self._kl_weights(self.clock[1:].double() + 1) if self.has_kl_weights else None
        terms = self._objective_terms(divergence, encoded, z, kl_weights)
        with torch.no_grad():
            return terms._replace(extras=self._logged(terms, encoded.detach(), z.detach())), None

    def _write_row(
        self,
        reconstruction: Tensor,
        kl: Tensor,
        per_latent: Tensor,
        beta: Tensor,
        extras: tuple[Tensor, ...],
    ) -> None:
        """Write this step's row of measurements into the buffer that the host reads."""
        row = make_rows(
            self.control.signals(),
            (self.low, self.high),
            reconstruction,
            Divergence(kl, per_latent),
            beta,
            extras,
        )
        self.rows.index_copy_(0, self.clock[:1], row.unsqueeze(0))

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Return the graph of one step; capture it at the first call.

        The warm-up steps are undone: all state is restored afterwards.
        """
        if self._graph is None:
            all_parameters = [parameters for parameters, _ in self.trained.values()]
            state = [self.clock, *self.network.buffers.values()]
            state += [buffer for each in all_parameters for buffer in each.buffers().values()]
            saved = [value.clone() for value in state]
            control = self.control.state_dict()
            self._warm_up()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._training_step()
            for value, before in zip(state, saved, strict=True):
                value.copy_(before)
            for parameters in all_parameters:
                parameters.update_operands()
            self.control.load_state_dict(control)
        return self._graph

    def _warm_up(self) -> None:
        """Take a few steps on a separate stream, as CUDA graphs require before a capture."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                # A run may resume near the end of its block; these steps must not go past it.
                self.clock[0] = 0
                self._training_step()
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def _load_block(self, block: int, position: int) -> None:
        """Load the batches and draw the noise of a block, and set the clock to `position` in it."""
        self.loader.load(block)
        first, steps = block * self.loader.block_steps, self.loader.block_steps
        times = torch.arange(first, first + steps, device=self.device)
        chunks = zip(times.split(_NOISE_STEPS), self.noise.split(_NOISE_STEPS), strict=True)
        for some_times, noise in chunks:
            drawn = normal_noise(self.keys[None], some_times[:, None], noise_shape(self.experiment))
            noise.copy_(drawn)
        if self.critic is not None:
            # A sort is many kernels, so it is done once per block and not in every step.
            self.noise[:, :, 2] = random_permutations(self.noise[:, :, 2]).float()
        self.clock.copy_(torch.tensor([position, self.step]))
        self._loaded_block = block

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return the state of one model on the host, under the names of the eager engine."""
        tensors: dict[str, Tensor] = {}
        for prefix, (parameters, _) in self.trained.items():
            exported = _export_model(parameters, model, self.step)
            tensors |= {prefix + name: value for name, value in exported.items()}
        for name, buffer in self.network.buffers.items():
            tensors[f"model.{name}"] = buffer[model].cpu().clone()
            # The encoder sees a second batch in every step if there is a critic.
            per_step = 2 if self.critic is not None and name.startswith("encoder.") else 1
            layer = name.rsplit(".", 1)[0]
            tensors[f"model.{layer}.num_batches_tracked"] = torch.tensor(per_step * self.step)
        control = self.control.state_dict(model)
        return tensors | {f"control.{name}": value.cpu() for name, value in control.items()}

    def set_target(self, model: int, target: float) -> None:
        """Change the set point of one model."""
        self.control.set_target(target, model)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Load a snapshot of this engine or of the eager one, in place.

        Args:
            model: Number of the model in the stack.
            step: Step of the snapshot.
            tensors: What `snapshot` returned.
        """
        kinds = {"weight": "model.", "exp_avg": "adam.exp_avg.", "exp_avg_sq": "adam.exp_avg_sq."}
        for prefix, (parameters, _) in self.trained.items():
            parameters.load(
                model, {kind: strip_prefix(tensors, prefix + name) for kind, name in kinds.items()}
            )
        for name, buffer in self.network.buffers.items():
            buffer[model].copy_(tensors[f"model.{name}"])
        self.control.load_state_dict(strip_prefix(tensors, "control."), model)
        self.step, self._loaded_block = step, -1


def _check_map_size(experiment: Experiment, shape: tuple[int, int, int]) -> None:
    """Raise if a feature map of one model has 2^31 values or more: kernel offsets have 32 bits."""
    channels, height, width = shape
    convolutions = enumerate(experiment.model.channels, start=1)  # type: ignore[union-attr]
    widths = (channels, *(wide / 4**layer for layer, wide in convolutions))
    if experiment.training.batch * height * width * max(widths) >= 2**31:
        raise ValueError(
            f"training.batch={experiment.training.batch} makes a feature map of over 2^31 values; "
            "set it lower"
        )


def _export_model(parameters: Parameters, model: int, step: int) -> dict[str, Tensor]:
    """Return one model's weights and moments under the names of the eager engine."""
    exported = parameters.export(model)
    tensors = {f"model.{name}": value for name, value in exported["weight"].items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        tensors |= {f"adam.{moment}.{name}": value for name, value in exported[moment].items()}
    return tensors | {f"adam.step.{name}": torch.tensor(float(step)) for name in exported["weight"]}


def _compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compile a function for a GPU. On a CPU, used by tests alone, return it unchanged."""
    if device.type != "cuda":
        return function
    return torch.compile(function, fullgraph=True, dynamic=False)


# The operations between the large matrix products are small enough for the compiler to fuse. The
# models are the first dimension throughout.


def _latent(encoded: Tensor, noise: Tensor, position: Tensor) -> tuple[Tensor, Divergence]:
    """Sample z, (models, batch, latents), and return it with its KL.

    `noise` is (steps, models, draws, batch, latents).
    """
    posterior = Posterior.from_encoder_output(encoded)
    return posterior.sample(noise.index_select(0, position)[0, :, 0]), compute_divergence(posterior)


def _reconstruction(likelihood: Likelihood) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Return a function of -log p(x|z) averaged over the batch, (models,). Bytes mean x · 255."""
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
        posterior = Posterior.from_encoder_output(encoded)
        return objective.terms(ObjectiveInputs(divergence, posterior, z, examples, kl_weights))

    return terms


def _logged(objective: Objective, examples: int) -> Callable[..., tuple[Tensor, ...]]:
    def logged(terms: Terms, encoded: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        """Return what the log has of an objective without a critic."""
        posterior = Posterior.from_encoder_output(encoded)
        return objective.logged(ObjectiveInputs(terms.divergence, posterior, z, examples), terms)

    return logged


def _kl_weights(experiment: Experiment) -> Callable[[Tensor], Tensor]:
    objective, latents = experiment.objective, experiment.model.latents

    def kl_weights(step: Tensor) -> Tensor:
        """Return the KL weight of each latent, (latents,), at a step, (1,)."""
        return torch.cat(
            [0 * step + weight for weight in objective.kl_weights_at(latents, step, TENSORS)]
        ).float()

    return kl_weights


def _second_latent(encoded: Tensor, noise: Tensor, position: Tensor) -> Tensor:
    """Sample the second batch's z and shuffle each latent across the batch.

    The second draw of `noise` is for the sample. The third holds the orders of the shuffling.
    """
    noise = noise.index_select(0, position)[0]
    z = Posterior.from_encoder_output(encoded).sample(noise[:, 1])
    return shuffle_latents(z, noise[:, 2].long())


def _critic_step(objective: Objective) -> Callable[..., tuple[Terms, Tensor]]:
    def terms_and_gradient(
        divergence: Divergence, joint: Tensor, other: Tensor
    ) -> tuple[Terms, Tensor]:
        """Return the terms, and the gradient of the critic's loss at its logits.

        The gradient has the rows of z first, then the shuffled ones.
        """
        logits = joint.detach(), other
        output = CriticOutput(joint, critic_accuracy(*logits))
        terms = objective.terms(ObjectiveInputs(divergence, critic=output))
        return terms, torch.cat(critic_loss_gradient(*logits), dim=1)

    return terms_and_gradient
