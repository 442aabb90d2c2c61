"""Laws of the comparison: `Auto`, published settings, and grids from which an oracle chooses."""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import controlvae as cv
from controlvae.laws import Law
from laws.problem import Problem

INFINITY = float("inf")
SMALLEST_WEIGHT = 1e-12  # for laws on log β, whose defaults exclude the weights of some problems


@dataclass(frozen=True)
class Setting:
    """One setting of a law.

    Args:
        name: Unique name.
        family: Family of laws.
        make: Function that creates the law of a problem.
        tuned: True for a point of a grid; false for a setting that is the same for all problems.
    """

    name: str
    family: str
    make: Callable[[Problem], Law]
    tuned: bool = False


def all_settings() -> list[Setting]:
    """Return all settings: `Auto`, settings that are the same for all problems, and grids."""
    return [
        Setting("auto", "auto", lambda p: _law(cv.Auto, p)),
        Setting("pi-published", "published", lambda p: _pi(p, 1e-4)),
        Setting("pi-1e-3", "published", lambda p: _pi(p, 1e-3)),
        Setting("adaptive-default", "published", lambda p: _adaptive(p, p.batch / 10_000)),
        Setting("sac-default", "published", lambda p: _sac(p, 3e-4)),
        Setting("dynamic-default", "published", lambda p: _law(cv.IncrementalPI, p)),
        *_grid("pi", (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), _tuned_pi),
        *_grid("lagrange", (1e-4, 1e-3, 1e-2, 1e-1), _lagrange),
        *_grid("nupi", (1e-4, 1e-3, 1e-2, 1e-1), lambda p, g: _nupi(p, g, damping=10)),
        *_grid("nupi-damped", (1e-4, 1e-3, 1e-2), lambda p, g: _nupi(p, g, damping=100)),
        *_grid("geco", (1e-3, 1e-2, 1e-1), _geco),
        *_grid("adaptive", (0.02, 0.1, 0.5), _adaptive),
        *_grid("sac", (1e-3, 3e-3, 1e-2, 3e-2), _sac),
        *_grid("dynamic", (5e-4, 5e-3, 5e-2), _dynamic),
    ]


def _grid(
    family: str, gains: tuple[float, ...], make: Callable[[Problem, float], Law]
) -> list[Setting]:
    return [
        Setting(f"{family} {gain:g}", family, lambda p, gain=gain: make(p, gain), tuned=True)
        for gain in gains
    ]


def _law(kind: type[Law], problem: Problem, **settings: Any) -> Law:
    """Create a law for the target and direction of a problem."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cv.TuningWarning)
        return kind(problem.target, direction=problem.direction, **settings)  # type: ignore


def _pi(problem: Problem, ki: float, kp: float = 0.01) -> Law:
    return _law(cv.PI, problem, kp=kp, ki=ki, beta_max=INFINITY)


def _tuned_pi(problem: Problem, gain: float) -> Law:
    """Create the paper's law with scaled gains; its proportional term lies between 0 and kp."""
    return _pi(problem, problem.gain_scale * gain, kp=0.01 * min(1.0, problem.gain_scale))


def _lagrange(problem: Problem, gain: float) -> Law:
    return _law(cv.LagrangeMultiplier, problem, alpha=problem.gain_scale * gain, projected=True)


def _nupi(problem: Problem, gain: float, damping: float) -> Law:
    """Create νPI with a proportional gain of `damping` steps of its integral action."""
    ki = problem.gain_scale * gain
    return _law(cv.NuPI, problem, kp=damping * ki, ki=ki, nu=0.9)


def _geco(problem: Problem, gain: float) -> Law:
    """Create GECO's update of log β with its moving average, on the quantity of the problem."""
    scale = problem.target_scale(problem.first_target())
    return _law(cv.Geco, problem, alpha=gain / scale, beta_min=SMALLEST_WEIGHT)


def _adaptive(problem: Problem, ratio: float) -> Law:
    """Create the adaptive KL coefficient with a ratio of batch size to horizon."""
    settings = {"n_steps": problem.batch, "horizon": problem.batch / ratio}
    return _law(cv.AdaptiveKL, problem, beta_min=SMALLEST_WEIGHT, **settings)


def _sac(problem: Problem, gain: float) -> Law:
    return _law(cv.LogLagrange, problem, alpha=gain, beta_min=SMALLEST_WEIGHT)


def _dynamic(problem: Problem, gain: float) -> Law:
    """Create DynamicVAE's law with a scaled gain and an initial weight of one."""
    gains = {"ki": problem.gain_scale * gain, "kp": 0.01 * min(1.0, problem.gain_scale)}
    return _law(cv.IncrementalPI, problem, beta_min=0.0, beta_init=1.0, **gains)


def load_prototype(source: str) -> Setting:
    """Load a law class as a replacement of `Auto`.

    Args:
        source: Path and class, as in `prototype.py:Auto`. Arguments follow in parentheses, as in
            `prototype.py:Auto(reach_in=400)`.
    """
    path, _, name = source.rpartition(":")
    name, _, arguments = name.partition("(")
    settings = eval(f"dict({arguments.rstrip(')')})", {})
    spec = importlib.util.spec_from_file_location("prototype_law", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"--law-file must be PATH.py:CLASS, got {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and `fingerprint` look it up
    spec.loader.exec_module(module)
    kind = getattr(module, name)
    return Setting("auto", "auto", lambda p: _law(kind, p, **settings))
