"""The captured engine: a whole training step of many models as one CUDA graph, replayed with the host looking away.

Sampling, forward, objective, controller, backward, optimiser and the record of measurements all live on the device;
the host prepares a block of batch numbers now and then, and reads measurements once per call.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.control import Controller, Feedback, Law
from controlvae.data.examples import BinaryImages, Order
from controlvae.experiments import Experiment
from controlvae.models import Posterior, build
from controlvae.objectives import bernoulli, gaussian_kl
from controlvae.training.checkpoint import part
from controlvae.training.measurements import COLUMNS
from controlvae.training.noise import noise_key, normal_noise
from controlvae.training.stacked import products
from controlvae.training.stacked.network import StackedVAE

_BLOCK_STEPS = 256  # steps whose batch numbers and noise are prepared at once
_WARM_UP = 3


class StackedEngine:
    """Trains many models of one shape side by side; each has its own weights, law, batches and random stream."""

    def __init__(self, experiments: Sequence[Experiment], examples: BinaryImages, device: torch.device) -> None:
        first = experiments[0]
        self.device = device
        self.adam = first.optimiser
        self.batch = first.training.batch
        self.examples = examples.to(device)
        models = [build(experiment, examples.shape) for experiment in experiments]
        self.network = StackedVAE(models[0], len(models), first.training.precision, device)
        for number, model in enumerate(models):
            self.network.parameters.load(number, {"weight": dict(model.named_parameters())})
        self.control = Controller([e.control for e in experiments], sync_ranks=False).to(device)
        self.orders = [Order(len(examples), self.batch, e.training.seed) for e in experiments]
        self.keys = torch.tensor([noise_key(e.training.seed) for e in experiments], device=device)
        bounds = [_bounds(experiment.control) for experiment in experiments]
        self.low, self.high = torch.tensor(bounds, dtype=torch.float64, device=device).unbind(1)
        latents, count = self.network.latents, len(models)
        self.noise = torch.zeros(_BLOCK_STEPS, count, self.batch, latents, device=device)
        self.indices = torch.zeros(_BLOCK_STEPS, count, self.batch, dtype=torch.int64, device=device)
        self.rows = torch.zeros(_BLOCK_STEPS, count, len(COLUMNS) + latents, dtype=torch.float64, device=device)
        self.clock = torch.zeros(2, dtype=torch.int64, device=device)  # position within the block, steps in all
        self.step = 0
        self._loaded_block = -1
        self._prepared: tuple[int, Tensor] | None = None
        # Dozens of operations on a handful of numbers: fused, they are a few kernels. Another engine's compilations
        # are forgotten first: they would count as recompilations of the same functions, and Dynamo allows eight.
        torch._dynamo.reset()
        self._account = _fused(self._account_eagerly, device)
        self._latent, self._bernoulli = _fused(_latent, device), _fused(_bernoulli, device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def advance(self, steps: int) -> Tensor:
        """Takes so many steps with every model. Measurements: (steps, models, columns), on the host.

        The one place that waits for the device.
        """
        measured = []
        while steps > 0:
            block, position = divmod(self.step, _BLOCK_STEPS)
            if block != self._loaded_block:
                self._load_block(block, position)
            replay = self._captured().replay if self.device.type == "cuda" else self._training_step
            now = min(steps, _BLOCK_STEPS - position)
            for _ in range(now):
                replay()
            measured.append(self.rows[position : position + now].clone())
            self.step += now
            steps -= now
        self._prepare(self._loaded_block + 1)  # on the host, while the device is busy
        return torch.cat(measured).cpu()

    def _training_step(self) -> None:
        position, counter = self.clock[:1], self.clock[1:]
        indices = self.indices.index_select(0, position)[0]
        noise = self.noise.index_select(0, position)[0]
        x = products.unpack(self.examples.bits, indices, self.examples.shape, self.network.maps)
        z, kl, kl_per_latent = self._latent(self.network.encode(x), noise)
        reconstruction = self._bernoulli(self.network.decode(z), x)
        beta = self._account(reconstruction.detach(), kl.detach(), kl_per_latent.detach())
        loss = (reconstruction + beta * kl).sum()
        loss.backward()
        self.network.parameters.step(counter, self.adam.rate, self.adam.beta1, self.adam.beta2)
        self.clock += 1

    def _account_eagerly(self, reconstruction: Tensor, kl: Tensor, kl_per_latent: Tensor) -> Tensor:
        """Moves the controllers on this batch's KL and writes the step's row of measurements. Returns the weights."""
        beta = self.control.step(kl)
        state = self.control.state
        saturated = (state.output < self.low) | (state.output > self.high)
        columns = [reconstruction, kl, state.target, state.beta, state.p, state.i, saturated]
        row = torch.cat([torch.stack([c.double() for c in columns], dim=1), kl_per_latent.double()], dim=1)
        self.rows.index_copy_(0, self.clock[:1], row.unsqueeze(0))
        return beta

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The graph of one step, captured at the first call. Warming up leaves no trace in the state."""
        if self._graph is None:
            parameters = self.network.parameters
            moving = [parameters.weights, parameters.first, parameters.second, self.clock]
            before = [value.clone() for value in moving]
            control = self.control.state_dict()
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self._training_step()
            torch.cuda.current_stream(self.device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._training_step()
            for value, kept in zip(moving, before, strict=True):
                value.copy_(kept)
            self.control.load_state_dict(control)
        return self._graph

    def _prepare(self, block: int) -> Tensor:
        """The batch numbers of a block of steps, on the host: (steps, models, batch)."""
        if self._prepared is None or self._prepared[0] != block:
            steps = range(block * _BLOCK_STEPS, (block + 1) * _BLOCK_STEPS)
            each = [torch.stack([order.indices(step) for step in steps]) for order in self.orders]
            numbers = torch.stack(each, dim=1)
            self._prepared = (block, numbers.pin_memory() if self.device.type == "cuda" else numbers)
        return self._prepared[1]

    def _load_block(self, block: int, position: int) -> None:
        self.indices.copy_(self._prepare(block), non_blocking=True)
        times = torch.arange(block * _BLOCK_STEPS, (block + 1) * _BLOCK_STEPS, device=self.device)
        self.noise.copy_(normal_noise(self.keys[None], times[:, None], (self.batch, self.network.latents)))
        self.clock.copy_(torch.tensor([position, self.step]))
        self._loaded_block = block

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Everything of one model that moves, under the names the plain engine uses, on the host."""
        exported = self.network.parameters.export(model)
        tensors = {f"model.{name}": value for name, value in exported["weight"].items()}
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors |= {f"adam.{moment}.{name}": value for name, value in exported[moment].items()}
        tensors |= {f"adam.step.{name}": torch.tensor(float(self.step)) for name in exported["weight"]}
        control = self.control.state_dict()
        return tensors | {f"control.{name}": value[model].cpu().clone() for name, value in control.items()}

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Goes on from a snapshot, of this engine or of the plain one, in place."""
        prefixes = {"weight": "model.", "exp_avg": "adam.exp_avg.", "exp_avg_sq": "adam.exp_avg_sq."}
        self.network.parameters.load(model, {kind: part(tensors, prefix) for kind, prefix in prefixes.items()})
        control = self.control.state_dict()
        for name, value in part(tensors, "control.").items():
            control[name][model] = value
        self.control.load_state_dict(control)
        self.step, self._loaded_block = step, -1


def _fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compiled on a GPU; as it is elsewhere, where the kernels run interpreted and only tests come by."""
    return torch.compile(function, fullgraph=True, dynamic=False) if device.type == "cuda" else function


def _bounds(law: Law) -> tuple[float, float]:
    return (law.beta_min, law.beta_max) if isinstance(law, Feedback) else (-math.inf, math.inf)


def _latent(encoded: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sample of z, (models, batch, latents); the KL, (models,); the KL of each latent, (models, latents)."""
    posterior = Posterior(*encoded.chunk(2, dim=2))
    kl = gaussian_kl(posterior)  # (models, batch, latents)
    return posterior.sample(noise), kl.sum(2).mean(1), kl.mean(1)


def _bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x|z), summed over pixels and averaged over the batch: (models,)."""
    return bernoulli(logits.flatten(0, 1), x.float().flatten(0, 1)).unflatten(0, logits.shape[:2]).mean(1)
