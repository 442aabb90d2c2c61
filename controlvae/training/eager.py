"""The plain engine: each model steps in turn, operation by operation. Runs anywhere; the reference for faster ones."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from controlvae.control import Controller, Feedback
from controlvae.data.buckets import BucketOrder
from controlvae.data.examples import Examples, stream_key
from controlvae.data.text import Sentences
from controlvae.experiments import Adam, BetaTC, Elbo, Experiment, TotalCorrelation
from controlvae.models import Posterior, build_critic, build_for
from controlvae.objectives import Terms, divergence, elbo_terms, reconstruction_of
from controlvae.objectives.total_correlation import (
    critic_accuracy,
    critic_loss,
    critic_terms,
    minibatch_terms,
    shuffled,
)
from controlvae.training.checkpoint import part
from controlvae.training.host import keep_freed_memory, one_thread
from controlvae.training.noise import noise_key, normal_noise
from controlvae.training.sampling import block_indices, noise_shape, orders, shuffling

_SMALL = 128  # a text model up to this width is trained on one thread of a CPU
_DROPOUT = 1 << 40  # the first stream of a seed's dropout, one per step


class Network:
    """A module and the Adam that moves it."""

    def __init__(self, module: nn.Module, adam: Adam, device: torch.device) -> None:
        self.module = module.to(device)
        self.optimiser = torch.optim.Adam(
            module.parameters(), lr=adam.rate, betas=(adam.beta1, adam.beta2), fused=device.type in ("cpu", "cuda")
        )

    def descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def snapshot(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        for name, parameter in self.module.named_parameters():
            for moment, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"adam.{moment}.{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.module.load_state_dict(part(tensors, "model."))
        for name, parameter in self.module.named_parameters():
            self.optimiser.state[parameter] = {
                "step": tensors[f"adam.step.{name}"].clone().to(parameter.device),
                # In the parameter's own memory layout, which the fused optimiser relies on.
                "exp_avg": torch.empty_like(parameter).copy_(tensors[f"adam.exp_avg.{name}"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(tensors[f"adam.exp_avg_sq.{name}"]),
            }


class Learner:
    """One model with its optimiser, controller, batch orders and random stream."""

    def __init__(self, experiment: Experiment, examples: Examples, device: torch.device) -> None:
        self.experiment = experiment
        self.examples = examples
        self.model = build_for(experiment, examples)
        if len(examples.shape) == 3:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.networks = {"": Network(self.model, experiment.optimiser, device)}  # by their prefix in a snapshot
        self.control = Controller(experiment.control, sync_ranks=False)
        self.reconstruction = reconstruction_of(experiment.objective)
        self.orders = orders(experiment, examples)
        self.key = torch.tensor(noise_key(experiment.training.seed), device=device)

    def advance(self, first: int, steps: int) -> Tensor:
        """Takes so many steps from the step `first`; returns their rows of measurements, (steps, columns)."""
        times = torch.arange(first, first + steps, device=self.key.device)
        # For all steps at once: many small operations become a few.
        noise = normal_noise(self.key, times, noise_shape(self.experiment))
        indices = block_indices(self.orders, first, steps).to(self.key.device)
        return torch.stack([self.step(first + t, indices[t], noise[t]) for t in range(steps)])

    def step(self, number: int, indices: Tensor, noise: Tensor) -> Tensor:
        """One optimiser step on indices (batches, batch) and noise (draws, batch, latents)."""
        x = self.inputs(number, indices[0])
        posterior = self.model.encode(x)
        z = posterior.sample(noise[0])
        reconstruction = self.reconstruction(self.model, z, x).mean()
        terms = self.terms(posterior, z, indices, noise)
        measured = (reconstruction if self.experiment.control.holds_reconstruction else terms.held).detach()
        # On the host's own memory a Python number is the cheaper way in; on a device it would wait for it.
        on_host = measured.device.type == "cpu"
        beta: float | Tensor = self.control.step(measured.item()) if on_host else self.control.step(measured)
        self.networks[""].descend(reconstruction + terms.given + beta * terms.held)
        return self._row(reconstruction.detach(), terms)

    def terms(self, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor) -> Terms:
        """What the objective makes of the code."""
        objective = self.experiment.objective
        if isinstance(objective, BetaTC):
            return minibatch_terms(divergence(posterior), posterior, z, len(self.examples))
        assert isinstance(objective, Elbo)
        return elbo_terms(divergence(posterior), objective.free_bits)

    def inputs(self, number: int, indices: Tensor) -> Tensor:
        """The batch of a step."""
        return _channels_last(self.examples.batch(indices))

    def _row(self, reconstruction: Tensor, terms: Terms) -> Tensor:
        state, law = self.control.state, self.control.laws[0]
        saturated = 0.0 * state.output
        if isinstance(law, Feedback):
            saturated = (state.output < law.beta_min) | (state.output > law.beta_max)
        kl, kl_per_latent = terms.divergence
        values = (reconstruction, kl.detach(), state.target, state.beta, state.p, state.i)
        device = self.key.device
        row = [
            torch.as_tensor(v, dtype=torch.float64, device=device).reshape(1)
            for v in (*values, saturated, *terms.extras)
        ]
        return torch.cat([*row, kl_per_latent.detach().double()])


class CriticLearner(Learner):
    """A model beside the critic that estimates its total correlation; they take turns in every step."""

    def __init__(self, experiment: Experiment, examples: Examples, device: torch.device) -> None:
        super().__init__(experiment, examples, device)
        assert isinstance(experiment.objective, TotalCorrelation)
        self.critic = build_critic(experiment)
        self.networks["critic."] = Network(self.critic, experiment.objective.critic_optimiser, device)

    def step(self, number: int, indices: Tensor, noise: Tensor) -> Tensor:
        row = super().step(number, indices, noise)
        self.networks["critic."].descend(self._critic_loss)
        return row

    def terms(self, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor) -> Terms:
        with torch.no_grad():
            other = self.model.encode(self.inputs(0, indices[1])).sample(noise[1])
        joint, independent = self.critic(z.detach()), self.critic(shuffled(other, shuffling(noise[2])))
        self._critic_loss = critic_loss(joint, independent)
        accuracy = critic_accuracy(joint, independent)
        return critic_terms(divergence(posterior), self.critic(z), accuracy)


class TextLearner(Learner):
    """A model of sentences: batches of like length, each as wide as it must be, and dropout."""

    def step(self, number: int, indices: Tensor, noise: Tensor) -> Tensor:
        # Dropout comes from torch's own generator: seeded for the step, so that it is a function of (seed, step) too.
        devices = [self.key.device] if self.key.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(stream_key(self.experiment.training.seed, _DROPOUT + number))
            return super().step(number, indices, noise)

    def inputs(self, number: int, indices: Tensor) -> Tensor:
        order = self.orders[0]
        assert isinstance(order, BucketOrder)
        assert isinstance(self.examples, Sentences)
        return self.examples.batch(indices, order.width(number))


class EagerEngine:
    """Trains models one after the other, step by step."""

    def __init__(self, experiments: Sequence[Experiment], examples: Examples, device: torch.device) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        examples = examples.to(device)
        kind = CriticLearner if isinstance(experiments[0].objective, TotalCorrelation) else Learner
        if isinstance(examples, Sentences):
            kind = TextLearner
            if device.type == "cpu" and experiments[0].model.width <= _SMALL:  # type: ignore[union-attr]
                one_thread()
        self.learners = [kind(experiment, examples, device) for experiment in experiments]
        self.step = 0

    def advance(self, steps: int) -> Tensor:
        """Takes so many steps with every model. Measurements: (steps, models, columns), on the host.

        The one place that waits for the device.
        """
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

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Goes on from a snapshot as if never stopped."""
        learner = self.learners[model]
        for prefix, network in learner.networks.items():
            network.restore(part(tensors, prefix))
        learner.control.load_state_dict({k: v.item() for k, v in part(tensors, "control.").items()})
        self.step = step


def _channels_last(x: Tensor) -> Tensor:
    """Pictures in the layout oneDNN and cuDNN like best.

    With one channel both layouts hold the same bytes and only the strides tell them apart; left to themselves they say
    channels first, and a rectifier's gradient then mixes layouts at forty times its cost.
    """
    _, channels, height, width = x.shape
    last = x.contiguous(memory_format=torch.channels_last)
    return last.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))
