"""Controllers: several controlled loss terms of one training, with one call per step."""

from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any

import torch

from controlvae.controller import Controller
from controlvae.laws.base import Law

# `step` takes this keyword itself.
_RESERVED_NAME = "last"


class Controllers:
    """Named controllers, one for each controlled term of a loss.

    >>> control = Controllers({"kl": PI(3.0), "entropy": PI.at_least(0.5, direction="inverse")})
    >>> kl, entropy = 4.0, 0.2                        # of a batch
    >>> weight = control.step(kl=kl, entropy=entropy)
    >>> loss = weight["kl"] * kl - weight["entropy"] * entropy
    >>> sorted(weight)
    ['entropy', 'kl']

    The terms are controlled independently, each by its own weight. If a weight moves several terms,
    the faster loop should settle well before the slower one.

    Args:
        controls: A law, a sequence of laws or a controller for each name.
        options: Arguments of `Controller` for the laws, such as `accumulate=4`.
    """

    def __init__(
        self, controls: Mapping[str, Law | Sequence[Law] | Controller], **options: Any
    ) -> None:
        if not isinstance(controls, Mapping) or not controls:
            raise TypeError(
                "controls must be a dict of laws or controllers such as {'kl': PI(3.0)}, "
                f"got {controls!r}"
            )
        for name in controls:
            if not isinstance(name, str) or name == _RESERVED_NAME:
                raise ValueError(f"names must be text other than {_RESERVED_NAME!r}, got {name!r}")
        self._controls = {
            name: control if isinstance(control, Controller) else Controller(control, **options)
            for name, control in controls.items()
        }

    def step(
        self, measured: Mapping[str, Any] | None = None, /, *, last: bool = False, **named: Any
    ) -> dict[str, Any]:
        """Update every law with its measurement of a batch and return the weights to use for it.

        A term that is measured less often than the others has `control["name"].step(value)`.

        Args:
            measured: Measurement of each name. Keywords do the same.
            last: The optimiser steps after this micro-batch; see `Controller.step`.
            named: Measurements as keywords: `step(kl=kl, entropy=entropy)`.

        Returns:
            The weight of each name, of the same kind as its measurement.
        """
        values = self._merge(measured, named, "a measurement")
        if missing := self._controls.keys() - values.keys():
            raise ValueError(
                f"measured must have a value for every name, {sorted(missing)} missing; for a term "
                "measured less often, call control[name].step"
            )
        return {
            name: control.step(values[name], last=last) for name, control in self._controls.items()
        }

    @property
    def weights(self) -> dict[str, Any]:
        """Current weight of each name, as `Controller.beta`."""
        return {name: control.beta for name, control in self._controls.items()}

    @property
    def targets(self) -> dict[str, Any]:
        """Current set point of each name, as `Controller.target`."""
        return {name: control.target for name, control in self._controls.items()}

    def set_target(self, targets: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Change set points from now on: `set_target(kl=3.0)`. Other names keep theirs.

        Args:
            targets: New set point of each name. Keywords do the same.
            named: New set points as keywords.
        """
        for name, target in self._merge(targets, named, "a target").items():
            self._controls[name].set_target(target)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return `Controller.stats` of each name. The call waits for the device."""
        return {name: control.stats() for name, control in self._controls.items()}

    def certificate(self, **options: Any) -> dict[str, Any]:
        """Return `Controller.certificate` of each name. The call waits for the device."""
        read = methodcaller("certificate", **options)
        return {name: read(control) for name, control in self._controls.items()}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the state of every controller under its name."""
        return {name: control.state_dict() for name, control in self._controls.items()}

    def load_state_dict(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a `state_dict()`.

        Raises:
            ValueError: If the names differ, or a state does not fit its law. All controllers are
                then as before.
        """
        if not isinstance(saved, Mapping) or saved.keys() != self._controls.keys():
            names = sorted(map(str, saved)) if isinstance(saved, Mapping) else f"{saved!r:.80}"
            raise ValueError(f"saved must have the names {sorted(self._controls)}, got {names}")
        before = self.state_dict()
        for name, control in self._controls.items():
            try:
                control.load_state_dict(saved[name])
            except ValueError as error:
                for other, state in before.items():
                    self._controls[other].load_state_dict(state)
                raise ValueError(f"{name}: {error}") from None

    def to(self, device: torch.device | str) -> "Controllers":
        """Move the states to a device."""
        for control in self._controls.values():
            control.to(device)
        return self

    def __getitem__(self, name: str) -> Controller:
        return self._controls[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._controls)

    def __len__(self) -> int:
        return len(self._controls)

    def __repr__(self) -> str:
        return f"Controllers({self._controls!r})"

    def _merge(
        self, values: Mapping[str, Any] | None, named: Mapping[str, Any], kind: str
    ) -> dict[str, Any]:
        """Return the values of both arguments after a check of their names."""
        merged = {**(values or {}), **named}
        if unknown := merged.keys() - self._controls.keys():
            raise ValueError(
                f"{kind} must have one of the names {sorted(self._controls)}, "
                f"got {sorted(map(str, unknown))}"
            )
        return merged
