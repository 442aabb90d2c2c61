"""Training step of one image model, operation by operation, with or without a critic."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.distributions import Posterior
from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import Width
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.engines.measurements import make_row
from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.lab.engines.rng import (
    draw_batch_indices,
    make_batch_orders,
    noise_key,
    noise_shape,
    normal_noise,
    random_permutations,
)
from controlvae.lab.models import build, build_critic
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.objectives import (
    CriticOutput,
    ObjectiveInputs,
    Terms,
    compute_divergence,
)
from controlvae.lab.objectives.total_correlation import (
    critic_accuracy,
    critic_loss,
    shuffle_latents,
)
from controlvae.lab.ranks.batch_norm import share_batch_norm
from controlvae.lab.ranks.gradients import (
    average_gradients,
    find_unused,
    keep_buffers,
    sum_gradients,
)
from controlvae.lab.ranks.share import BatchShare
from controlvae.lab.ranks.terms import average_terms, gather_posterior


class ModelTrainer:
    """One model with its optimiser, controller, batch orders and random stream.

    Args:
        experiment: Experiment to train.
        examples: Training data on the device.
        device: Device to train on.
        share: Rows of each batch that this process computes. None computes all of them.
    """

    # The noise of the whole batch is drawn, because terms need it.
    draws_whole_noise: ClassVar[bool] = False

    def __init__(
        self,
        experiment: Experiment,
        examples: Dataset,
        device: torch.device,
        share: BatchShare | None = None,
    ) -> None:
        self.experiment = experiment
        self.examples = examples
        self.share = share or BatchShare()
        self.share.set_batch(experiment.training.batch)
        self.model = build(experiment, examples)
        optimise_layers(self.model)
        if isinstance(examples, ImageDataset):
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if not self.share.is_whole:
            share_batch_norm(self.model, self.share)
        # By the prefix of their names in a snapshot.
        self.optimisers = {"": NetworkOptimiser(self.model, experiment.adam, device)}
        # The log has the facts of a monitor, and a captured step should not get slower.
        self.control = Controller(
            experiment.control,
            sync_ranks=False,
            delayed=experiment.training.delayed,
            monitor=False,
        )
        self.reconstruction = reconstruction_loss(experiment.objective.likelihood)
        self.orders = make_batch_orders(experiment, examples)
        self.key = torch.tensor(noise_key(experiment.training.seed), device=device)
        self.device = self.key.device
        kl_weights = experiment.objective.kl_weights_at(experiment.model.latents, 1.0)
        self.kl_weights = torch.tensor(kl_weights).to(device) if kl_weights else None
        self.losses: Callable[..., Any] = self.compute_losses

    def connect_ranks(self) -> None:
        """Average gradients over ranks from now on. Every rank calls this."""
        indices, noise = self.draw_randomness(0, 1)
        width = self.prepare(0)

        def loss_of_first_batch() -> Tensor:
            reconstruction, terms, _ = self.compute_losses(width, indices[0], noise[0])
            return reconstruction + terms.uncontrolled + terms.controlled

        with keep_buffers(self.model):
            unused = find_unused(self.model, loss_of_first_batch)
        self.losses = average_gradients(self.model, self.compute_losses, unused=unused)

    def disconnect_ranks(self) -> None:
        """Remove the hooks that average gradients."""
        self.losses = self.compute_losses

    def advance(self, first: int, steps: int) -> Tensor:
        """Train for `steps` steps from step `first`. Returns measurements, (steps, columns)."""
        indices, noise = self.draw_randomness(first, steps)
        return torch.stack(
            [self.step(self.prepare(first + t), indices[t], noise[t]) for t in range(steps)]
        )

    def draw_randomness(self, first: int, steps: int) -> tuple[Tensor, Tensor]:
        """Draw batch indices (steps, batches, batch) and noise (steps, draws, batch, latents).

        All steps are drawn together, because a few large operations cost less than many small ones.
        """
        numbers = torch.arange(first, first + steps, device=self.device)
        rows = slice(None) if self.draws_whole_noise else self.share.rows
        noise = normal_noise(self.key, numbers, noise_shape(self.experiment), rows)
        return draw_batch_indices(self.orders, first, steps).to(self.device), noise

    def prepare(self, number: int) -> Width:
        """Do the host's work before a step.

        Returns:
            The width of the step's batch. Steps of one width have the same shapes.
        """
        for optimiser in self.optimisers.values():
            optimiser.set_rate(number)
        self.set_kl_weights(number)
        return self.examples.shape[-1]

    def set_kl_weights(self, number: int) -> None:
        """Write scheduled KL weights where a captured step reads them, without waiting."""
        objective = self.experiment.objective
        if self.kl_weights is None or not objective.has_scheduled_kl_weights():
            return
        weights = torch.tensor(objective.kl_weights_at(len(self.kl_weights), number + 1.0))
        source = weights.pin_memory() if self.kl_weights.is_cuda else weights
        self.kl_weights.copy_(source, non_blocking=True)

    def step(self, width: Width, indices: Tensor, noise: Tensor) -> Tensor:
        """Take one optimiser step.

        Args:
            width: Width of the batch, from `prepare`.
            indices: Examples of each batch, (batches, batch), on the device.
            noise: Noise of each draw, (draws, batch, latents), on the device.

        Returns:
            The step's row of measurements, (columns,).
        """
        reconstruction, terms, further_losses = self.losses(width, indices, noise)
        by_reconstruction = self.experiment.control.controls_reconstruction
        measured = (reconstruction if by_reconstruction else terms.controlled).detach()
        # In host memory a Python number is the cheaper input; on a device it would force a wait.
        on_host = measured.device.type == "cpu"
        beta: float | Tensor = (
            self.control.step(measured.item()) if on_host else self.control.step(measured)
        )
        loss = reconstruction + terms.uncontrolled + beta * terms.controlled
        # Gradients are averaged over ranks, and each rank has only the part of its rows.
        self.optimisers[""].backward_and_step(
            loss if self.share.is_whole else loss * self.share.size
        )
        for prefix, further_loss in further_losses.items():
            self.optimisers[prefix].backward_and_step(further_loss)
        weight = beta if self.control.delayed else self.control.state.beta
        return make_row(self.control, reconstruction, terms, weight, self.device)

    def compute_losses(
        self, width: Width, indices: Tensor, noise: Tensor
    ) -> tuple[Tensor, Terms, dict[str, Tensor]]:
        """Return reconstruction, terms and further losses, averaged over the whole batch.

        Args:
            width: Width of the batch.
            indices: Examples of each batch, (batches, batch).
            noise: Noise of each draw, (draws, batch, latents).
        """
        x = self.load_batch(width, indices[0][self.share.rows])
        return self.compute_batch_losses(x, indices, noise)

    def compute_batch_losses(
        self, x: Any, indices: Tensor, noise: Tensor
    ) -> tuple[Tensor, Terms, dict[str, Tensor]]:
        """Return the losses of a batch that has been loaded. See `compute_losses`.

        Args:
            x: The first batch.
            indices: Examples of each batch, (batches, batch).
            noise: Noise of each draw, (draws, batch, latents).
        """
        posterior = self.encode(x)
        z = posterior.sample(self.own_noise(noise[0]))
        reconstruction = self.reconstruct(z, x, posterior).mean()
        if not self.share.is_whole and self.experiment.objective.needs_whole_batch():
            everywhere = gather_posterior(posterior, self.share)
            terms, further = self.terms(x, everywhere, self.share.gather(z), indices, noise)
            return self.share.mean([reconstruction])[0], terms, further
        terms, further = self.terms(x, posterior, z, indices, noise)
        return *average_terms(reconstruction, terms, self.share), further

    def own_noise(self, noise: Tensor) -> Tensor:
        """Return the rows of this process, (rows, latents), of the noise that was drawn."""
        return noise[self.share.rows] if self.draws_whole_noise else noise

    def terms(
        self, x: Any, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor
    ) -> tuple[Terms, dict[str, Tensor]]:
        """Return the objective's terms, and the losses of further networks by their prefixes.

        Args:
            x: Batch of the step.
            posterior: Posterior of the batch.
            z: Sample of the posterior, (batch, latents).
            indices: Examples of each batch, (batches, batch).
            noise: Noise of each draw, (draws, batch, latents).
        """
        objective, inputs = self.experiment.objective, self.objective_inputs(x, posterior, z)
        terms = objective.terms(inputs)
        return terms._replace(extras=objective.logged(inputs, terms)), {}

    def objective_inputs(self, x: Any, posterior: Posterior, z: Tensor) -> ObjectiveInputs:
        """Return the results of a step that an objective reads.

        Args:
            x: Batch of the step.
            posterior: Posterior of the batch.
            z: Sample of the posterior, (batch, latents).
        """
        return ObjectiveInputs(
            compute_divergence(posterior),
            posterior,
            z,
            examples=self.orders[0].count,
            kl_weights=self.kl_weights,
            model=self.model,
            x=x,
        )

    def load_batch(self, width: Width, indices: Tensor) -> Any:
        """Return the examples at `indices`."""
        return _as_channels_last(self.examples.batch(indices))

    def encode(self, x: Any) -> Posterior:
        """Return the posterior of a batch."""
        return self.model.encode(x)

    def reconstruct(self, z: Tensor, x: Any, posterior: Posterior) -> Tensor:
        """Return the reconstruction loss -log p(x|z) per example, in nats, (batch,).

        Args:
            z: Sample of the posterior, (batch, latents).
            x: Batch of the step.
            posterior: Posterior of the batch.
        """
        return self.reconstruction(self.model, z, x, posterior.context)


class CriticTrainer(ModelTrainer):
    """Trainer of a model and of its objective's critic. Both take one step per batch."""

    draws_whole_noise: ClassVar[bool] = True  # a shuffling of the whole batch

    def __init__(
        self,
        experiment: Experiment,
        examples: Dataset,
        device: torch.device,
        share: BatchShare | None = None,
    ) -> None:
        super().__init__(experiment, examples, device, share)
        spec = experiment.objective.critic_spec()
        assert spec is not None
        self.critic = build_critic(experiment)
        self.optimisers["critic."] = NetworkOptimiser(self.critic, spec.optimiser, device)
        self.optimisers["critic."].after_backward = self._sum_critic_gradients

    def _sum_critic_gradients(self) -> None:
        # Not by DistributedDataParallel: the critic is called three times in a step.
        sum_gradients(self.critic.parameters(), self.share)

    def terms(
        self, x: Any, posterior: Posterior, z: Tensor, indices: Tensor, noise: Tensor
    ) -> tuple[Terms, dict[str, Tensor]]:
        """Return the objective's terms and the critic's loss. See `ModelTrainer.terms`."""
        with torch.no_grad():
            second = self.load_batch(0, indices[1][self.share.rows])
            other = self.share.gather(self.encode(second).sample(self.own_noise(noise[1])))
        joint = self.critic(z.detach())
        order = random_permutations(noise[2])[self.share.rows]
        independent = self.critic(shuffle_latents(other, order))
        output = CriticOutput(self.critic(z), critic_accuracy(joint, independent))
        inputs = self.objective_inputs(x, posterior, z)._replace(critic=output)
        (loss,) = self.share.mean([critic_loss(joint, independent)])
        return self.experiment.objective.terms(inputs), {"critic.": loss}


def _as_channels_last(x: Tensor) -> Tensor:
    """Return images in channels-last layout, the fastest for oneDNN and cuDNN.

    With one channel both layouts hold the same bytes and differ only in their strides. torch then
    reports channels first, and the gradient of a ReLU mixes layouts at forty times its cost.
    """
    _, channels, height, width = x.shape
    last = x.contiguous(memory_format=torch.channels_last)
    return last.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))
