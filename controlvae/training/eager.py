"""The plain engine: each model steps in turn, operation by operation. Runs anywhere; the reference for faster ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.control import Controller, Feedback
from controlvae.data.examples import Examples, Order
from controlvae.experiments import Experiment
from controlvae.models import build
from controlvae.objectives import elbo_terms
from controlvae.training.checkpoint import part
from controlvae.training.host import keep_freed_memory
from controlvae.training.noise import noise_key, normal_noise


class Learner:
    """One model with its optimiser, controller, batch order and random stream."""

    def __init__(self, experiment: Experiment, examples: Examples, device: torch.device) -> None:
        training, adam = experiment.training, experiment.optimiser
        self.experiment = experiment
        self.examples = examples
        self.model = build(experiment, examples.shape).to(device)
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.control = Controller(experiment.control, sync_ranks=False)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=adam.rate, betas=(adam.beta1, adam.beta2), fused=device.type in ("cpu", "cuda")
        )
        self.order = Order(len(examples), training.batch, training.seed)
        self.key = noise_key(training.seed)

    def step(self, indices: Tensor, noise: Tensor) -> Tensor:
        """One optimiser step; returns its row of measurements."""
        x = _channels_last(self.examples.batch(indices))
        terms = elbo_terms(self.model, x, noise)
        # On the host's own memory a Python number is the cheaper way in; on a device it would wait for it.
        kl = terms.kl.detach()
        beta: float | Tensor = self.control.step(kl.item()) if kl.device.type == "cpu" else self.control.step(kl)
        loss = terms.reconstruction + beta * terms.kl
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return self._row(terms.reconstruction.detach(), kl, terms.kl_per_latent.detach())

    def _row(self, reconstruction: Tensor, kl: Tensor, kl_per_latent: Tensor) -> Tensor:
        state, law = self.control.state, self.control.laws[0]
        saturated = 0.0 * state.output
        if isinstance(law, Feedback):
            saturated = (state.output < law.beta_min) | (state.output > law.beta_max)
        values = (reconstruction, kl, state.target, state.beta, state.p, state.i, saturated)
        row = [torch.as_tensor(v, dtype=torch.float64, device=kl.device).reshape(1) for v in values]
        return torch.cat([*row, kl_per_latent.double()])


class EagerEngine:
    """Trains models one after the other, step by step."""

    def __init__(self, experiments: Sequence[Experiment], examples: Examples, device: torch.device) -> None:
        self.device = device
        if device.type == "cpu":
            keep_freed_memory()
        examples = examples.to(device)
        self.learners = [Learner(experiment, examples, device) for experiment in experiments]
        self.step = 0

    def advance(self, steps: int) -> Tensor:
        """Takes so many steps with every model. Measurements: (steps, models, columns), on the host.

        The one place that waits for the device.
        """
        rows = []
        times = torch.arange(self.step, self.step + steps, device=self.device)
        for learner in self.learners:
            key = torch.tensor(learner.key, device=self.device)
            shape = (learner.order.batch, learner.model.latents)
            noise = normal_noise(key, times, shape)  # all steps at once: many small operations become a few
            chosen = torch.stack([learner.order.indices(self.step + t) for t in range(steps)]).to(self.device)
            rows.append(torch.stack([learner.step(chosen[t], noise[t]) for t in range(steps)]))
        self.step += steps
        return torch.stack(rows, dim=1).cpu()

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Everything of one model that moves, by name, on the host."""
        learner = self.learners[model]
        tensors = {f"model.{name}": value for name, value in learner.model.state_dict().items()}
        for name, parameter in learner.model.named_parameters():
            for moment, value in learner.optimiser.state.get(parameter, {}).items():
                tensors[f"adam.{moment}.{name}"] = value
        for name, value in learner.control.state_dict().items():
            tensors[f"control.{name}"] = torch.as_tensor(value, dtype=torch.float64)
        # Clones, because safetensors refuses shared memory; contiguous, because it stores no strides.
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Goes on from a snapshot as if never stopped."""
        learner = self.learners[model]
        learner.model.load_state_dict(part(tensors, "model."))
        for name, parameter in learner.model.named_parameters():
            learner.optimiser.state[parameter] = {
                "step": tensors[f"adam.step.{name}"].clone().to(parameter.device),
                # In the parameter's own memory layout, which the fused optimiser relies on.
                "exp_avg": torch.empty_like(parameter).copy_(tensors[f"adam.exp_avg.{name}"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(tensors[f"adam.exp_avg_sq.{name}"]),
            }
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
