"""Rate-distortion curve of a rate-conditioned model: its points, its file, and runs at a rate."""

import copy
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.models.rate_conditioning import find_conditioning
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun

CURVE_FILE = "curve.json"


@dataclass(frozen=True)
class CurvePoint:
    """One point of a rate-distortion curve, in nats per example.

    Attributes:
        rate: Rate that was asked for. That of a separate training is its measured KL.
        setting: Rate that the network is given to reach it, or None for a network of one rate.
        kl: KL measured on held-out examples.
        reconstruction: Reconstruction loss measured on them.
        elbo: ELBO measured on them.
        price: Reconstruction that one more nat buys, which is the KL weight β at this rate.
        fid: FID of samples from the prior, or None.
        label: Run folder of a network of one rate.
    """

    rate: float
    setting: float | None
    kl: float
    reconstruction: float
    elbo: float
    price: float | None = None
    fid: float | None = None
    label: str = ""

    @property
    def error(self) -> float:
        """Relative deviation of the measured KL from the rate that was asked for."""
        return self.kl / self.rate - 1


@dataclass(frozen=True)
class Calibration:
    """KL of a network as a function of the rate it is given, measured on training examples.

    A network holds its set points on average over training. Its KL between two set points, and that
    of the last weights, are a little off, so the wanted rate is looked up here.

    Attributes:
        settings: Rates that the network was given, ascending.
        kl: KL at each of them.
    """

    settings: tuple[float, ...]
    kl: tuple[float, ...]

    def setting_for(self, rate: float) -> float:
        """Return the setting at which the network has this KL, or the nearest it can reach."""
        ascending = np.maximum.accumulate(np.log(self.kl))
        return float(np.exp(np.interp(math.log(rate), ascending, np.log(self.settings))))


@dataclass(frozen=True)
class RateCurve:
    """Rate-distortion curve of one network, or of a network for every point.

    Attributes:
        points: Points from the lowest to the highest rate.
        separate: Points of separate trainings, for comparison.
        calibration: Which setting of the network gives which KL, or None for separate networks.
        step: Training step of the weights.
        examples: Number of examples of a measurement.
        split: Name of the split they come from.
    """

    points: tuple[CurvePoint, ...]
    separate: tuple[CurvePoint, ...]
    calibration: Calibration | None
    step: int
    examples: int
    split: str

    @property
    def of_separate_networks(self) -> bool:
        """True if every point has a network of its own."""
        return self.calibration is None

    @property
    def best(self) -> CurvePoint:
        """Point of the highest ELBO."""
        return max(self.points, key=lambda point: point.elbo)

    @property
    def largest_error(self) -> float:
        """Largest relative deviation of a measured KL from its rate."""
        return max(abs(point.error) for point in self.points)

    def at(self, rate: float) -> CurvePoint:
        """Return the point at a rate, interpolated between its neighbours."""
        low, high = self.points[0].kl, self.points[-1].kl
        if not low <= rate <= high:
            raise UserError(f"rate must lie in {low:.4g}..{high:.4g} nats, got {rate!r}")
        places = np.log([point.kl for point in self.points])
        reconstruction, elbo, price = (
            float(np.interp(math.log(rate), places, [getattr(p, name) for p in self.points]))
            for name in ("reconstruction", "elbo", "price")
        )
        setting = self.calibration.setting_for(rate) if self.calibration else None
        return CurvePoint(rate, setting, rate, reconstruction, elbo, price)

    def setting_for(self, rate: float) -> float:
        """Return the rate that the network is given to have this KL.

        Raises:
            UserError: If the network does not reach it, or every point has its own network.
        """
        if self.calibration is None:
            raise UserError("every point of this curve has its own network; load its run instead")
        low, high = min(self.calibration.kl), max(self.calibration.kl)
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not (is_number and low <= rate <= high):
            raise UserError(
                f"rate must be a number of nats from {low:.4g} to {high:.4g}, got {rate!r}"
            )
        return self.calibration.setting_for(rate)

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as JSON data."""
        return asdict(self)

    @classmethod
    def read(cls, folder: RunFolder) -> "RateCurve | None":
        """Return the curve that was measured for a run, or None.

        Raises:
            UserError: If the file is damaged.
        """
        path = folder.path / CURVE_FILE
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            parts = content["calibration"]
            calibration = parts and Calibration(*(tuple(part) for part in parts.values()))
            points, separate = (
                tuple(CurvePoint(**point) for point in content[name])
                for name in ("points", "separate")
            )
            numbers = {name: content[name] for name in ("step", "examples", "split")}
            return cls(points, separate, calibration, **numbers)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it and measure again") from None


def run_at_rate(run: LoadedRun, setting: float) -> LoadedRun:
    """Return a rate-conditioned run with a copy of its network, fixed at a setting in nats.

    Raises:
        UserError: If the run is not conditioned on the rate, or has not learnt this one.
    """
    network = copy.deepcopy(run.model)
    conditioning = find_conditioning(network)
    if conditioning is None:
        raise UserError(
            f"{run.folder.path} was trained at one set point; train a model for all rates with "
            "controlvae curve"
        )
    conditioning.set_rate(setting)
    if isinstance(run.network, CustomVAE):
        return replace(run, network=run.network.with_module(network))
    return replace(run, network=network)


def run_at_measured_rate(run: LoadedRun, rate: float) -> LoadedRun:
    """Return a run at a rate in nats, by the calibration of its curve if that was measured."""
    found = RateCurve.read(run.folder)
    return run_at_rate(run, rate if found is None else found.setting_for(rate))
