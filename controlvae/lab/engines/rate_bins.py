"""Set points of a rate-conditioned model in training: who has which, and the weight of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.lab.config import Experiment
from controlvae.laws import Feedback, Law, Linear
from controlvae.laws.states import Signals


class RateBins:
    """Divides each batch over the set points, and holds the KL of each at its set point.

    Example i has set point i modulo their number. Batches are random, so every set point sees all
    of the data.

    Args:
        experiment: Experiment with a range of rates.
        device: Device of the batches.
    """

    def __init__(self, experiment: Experiment, device: torch.device) -> None:
        assert experiment.rates is not None
        law = experiment.control
        assert isinstance(law, Feedback)
        set_points = experiment.rates.set_points
        self.count = len(set_points)
        self.repeats = experiment.training.batch // self.count
        self.set_points = torch.tensor(set_points, device=device)
        self.delayed = experiment.training.delayed
        self.balance = experiment.rates.balance
        targets = ramped_targets(experiment)
        self.control = make_controllers(
            [with_target(law, target) for target in targets], self.delayed, device
        )
        low, high = law.bounds
        self.bounds = (low, high)

    def average(self, values: Tensor) -> Tensor:
        """Return the mean over the examples of each set point, (set points, ...)."""
        return values.view(self.repeats, self.count, *values.shape[1:]).mean(0)

    def weigh(self, reconstruction: Tensor, kl: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights, and return the loss and the weights of this step.

        Args:
            reconstruction: Reconstruction loss of each set point, (set points,).
            kl: KL of each set point, (set points,).
        """
        beta = self.control.step(kl.detach())
        weights = beta if self.delayed else self.control.signals().beta
        shares = (1 + beta) ** -self.balance
        loss = (shares * (reconstruction + beta * kl)).mean() / shares.mean()
        return loss, weights

    def make_row(
        self, reconstruction: Tensor, kl: Tensor, kl_per_latent: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the row of measurements of a step: means over set points, then those of each.

        Args:
            reconstruction: Reconstruction loss of each set point, (set points,).
            kl: KL of each set point, (set points,).
            kl_per_latent: KL of each latent, averaged over the batch.
            weights: Weight of each set point, (set points,).
        """
        signals, (low, high) = self.control.signals(), self.bounds
        saturated = (signals.unclamped_beta < low) | (signals.unclamped_beta > high)
        terms = (signals.proportional, signals.integral)
        each = [reconstruction, kl, signals.target, weights, *terms, saturated]
        means = torch.stack([value.detach().double().mean() for value in each])
        parts = [kl, reconstruction, weights, kl_per_latent]
        return torch.cat([means, *[part.detach().double() for part in parts]])


def with_target(law: Law, target: float | Linear) -> Law:
    """Return a law with another set point."""
    changed: Law = replace(law, target=target)  # type: ignore[type-var]
    return changed


def ramped_targets(experiment: Experiment) -> list[float | Linear]:
    """Return the target of each set point: a ramp down from the highest one.

    A latent that dies at a low rate while the network is young is lost for every rate. So all set
    points start where all latents are in use.
    """
    assert experiment.rates is not None
    set_points = experiment.rates.set_points
    steps = round(experiment.rates.ramp * experiment.training.steps)
    highest = set_points[-1]
    if not steps:
        return list(set_points)
    ramps = [Linear(highest, target, steps=steps) for target in set_points[:-1]]
    return [*ramps, highest]


class HostControllers:
    """Controllers of several set points on a CPU, one after the other.

    An update on floats takes microseconds, and one on a tensor of few values milliseconds. The
    saved state is that of a `Controller` with several models, so a run may move to a GPU and back.

    Args:
        laws: Law of each set point.
        delayed: Return the weight of the previous step.
    """

    def __init__(self, laws: Sequence[Law], delayed: bool) -> None:
        self.parts = [
            Controller(law, sync_ranks=False, delayed=delayed, monitor=False) for law in laws
        ]

    def step(self, measured: Tensor) -> Tensor:
        """Update every law. See `Controller.step`."""
        pairs = zip(self.parts, measured.tolist(), strict=True)
        return measured.new_tensor([control.step(value) for control, value in pairs])

    def signals(self) -> Signals:
        """Return the signals of every law, each (set points,)."""
        columns = zip(*(control.signals() for control in self.parts), strict=True)
        return Signals(*(torch.tensor(column, dtype=torch.float64) for column in columns))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every law, each value (set points,)."""
        states = [control.state_dict() for control in self.parts]
        return {
            name: torch.stack([torch.as_tensor(one[name], dtype=torch.float64) for one in states])
            for name in states[0]
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a `state_dict()`."""
        for place, control in enumerate(self.parts):
            control.load_state_dict({name: value[place].item() for name, value in saved.items()})


def make_controllers(
    laws: Sequence[Law], delayed: bool, device: torch.device
) -> Controller | HostControllers:
    """Return the faster kind of controllers of several set points on a device.

    Args:
        laws: Law of each set point.
        delayed: Return the weight of the step before.
        device: Device that the measurements are on.
    """
    if device.type == "cpu":
        return HostControllers(laws, delayed)
    control = Controller(list(laws), sync_ranks=False, delayed=delayed, monitor=False)
    return control.to(device)


def rate_columns(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of a row's columns of single set points: `kl@6` and so on."""
    if experiment.rates is None:
        return ()
    names = [f"{rate:.3g}" for rate in experiment.rates.set_points]
    return tuple(f"{kind}@{name}" for kind in ("kl", "reconstruction", "beta") for name in names)
