"""Every run that has a name: the paper's settings, and quick ones for a laptop."""

import math
import warnings
from dataclasses import replace

from controlvae.control import PI, Capacity, Constant, LagrangeMultiplier, Linear, Staircase, TuningWarning
from controlvae.control.law import Target
from controlvae.errors import unknown
from controlvae.experiments.experiment import (
    CIFAR10,
    Adam,
    BetaTC,
    ConvVAE,
    Elbo,
    Experiment,
    ImageVAE,
    Shapes2D,
    TotalCorrelation,
    Training,
)


def _ramp(stop: float, step: float = 0.15) -> Staircase:
    """The paper's set point for 2D Shapes: from 0.5 nats, one step every 5,000."""
    return Staircase(start=0.5, stop=stop, step=step, every=5_000)


def _control(stop: float, step: float = 0.15) -> PI:
    return PI.paper("disentangling", target=_ramp(stop, step))


def _unbounded(target: Target, **settings: float) -> PI:
    """The PI law with no upper bound on its weight, at set points where the published gains break their own rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        return PI(target, beta_max=math.inf, **settings)  # type: ignore[arg-type]


SHAPES2D = Experiment("shapes2d", data=Shapes2D(), model=ConvVAE(latents=10), training=Training())
FACTOR = replace(
    SHAPES2D, model=ConvVAE(latents=10, hidden=128, initial="normal"), objective=TotalCorrelation(),
    training=Training(steps=700_000),  # the length of the script it is known from
)  # fmt: skip
CIFAR10_128 = Experiment(
    "cifar10", data=CIFAR10(size=128), model=ImageVAE(latents=100), objective=Elbo("squared-error"),
    training=Training(steps=200_000, batch=100),
)  # fmt: skip
QUICK = replace(
    SHAPES2D,
    data=Shapes2D(size=32, images=20_000),
    model=ConvVAE(latents=10, channels=(16, 32, 32), hidden=128),
    optimiser=Adam(rate=1e-3),
    training=Training(steps=3_000, batch=64, log_every=20),
)

_PRESETS = [
    replace(QUICK, name="shapes2d-quick", about="ControlVAE held at 18 nats on small shapes: a minute on two cores",
            control=PI(18.0)),
    replace(QUICK, name="shapes2d-quick-vae", about="the plain VAE on the same small shapes", control=Constant(1.0)),
    replace(QUICK, name="shapes2d-quick-beta", about="β-VAE (β = 4) on the same small shapes", control=Constant(4.0)),
    replace(SHAPES2D, name="shapes2d-vae", about="plain VAE", control=Constant(1.0)),
    replace(SHAPES2D, name="shapes2d-beta", about="β-VAE with β fixed at 4 (Higgins et al.)", control=Constant(4.0)),
    replace(SHAPES2D, name="shapes2d-beta-100", paper="Tables 1 and 2, Figure 3",
            about="β-VAE with capacity 15 and γ = 100, as published: its own network and learning rate",
            model=ConvVAE(latents=10, channels=(32, 32, 32, 32), dense=(256,)), optimiser=Adam(rate=5e-4),
            control=Capacity(Linear(0.0, 15.0, steps=100_000), gamma=100.0)),
    replace(SHAPES2D, name="shapes2d-beta-100-matched",
            about="the same law on ControlVAE's network, learning rate and set point of 16",
            control=Capacity(_ramp(16), gamma=100.0)),
    *(replace(SHAPES2D, name=f"shapes2d-control-{stop}", about=f"ControlVAE, KL = {stop}", control=_control(stop),
              paper="Tables 1, 2 and 6, Figure 3" if stop in (16, 18) else "Table 6") for stop in (16, 17, 18, 19)),
    *(replace(SHAPES2D, name=f"shapes2d-control-16-step-{step:g}", about=f"ControlVAE, KL = 16, ramp step {step:g}",
              paper="Table 7", control=_control(16, step)) for step in (0.05, 0.1, 0.2)),
    replace(FACTOR, name="shapes2d-factor", paper="Tables 1 and 2, Figure 3",
            about="FactorVAE (γ = 10), as published: its own network and initialisation", control=Constant(10.0)),
    replace(FACTOR, name="shapes2d-control-factor", paper="Tables 1 and 2, Figure 3",
            about="Control-FactorVAE: total correlation held at 0.3", control=_unbounded(0.3)),
    replace(SHAPES2D, name="shapes2d-factor-matched", objective=TotalCorrelation(), control=Constant(10.0),
            about="FactorVAE (γ = 10) on ControlVAE's network"),
    replace(SHAPES2D, name="shapes2d-control-factor-matched", objective=TotalCorrelation(),
            about="Control-FactorVAE on ControlVAE's network", control=_unbounded(0.3)),
    replace(SHAPES2D, name="shapes2d-beta-tc", objective=BetaTC(), control=Constant(6.0),
            about="β-TCVAE (β = 6, Chen et al.) on ControlVAE's network, batch and rate"),
    replace(SHAPES2D, name="shapes2d-dynamic-16", about="the authors' later variant: β starts at 100, KL averaged over "
            "five steps", control=_unbounded(_ramp(16), ki=5e-3, beta_min=1.0, beta_init=100.0, ema=0.8)),
    replace(SHAPES2D, name="shapes2d-lagrange-16", about="Lagrange multiplier, KL = 16",
            control=LagrangeMultiplier(_ramp(16), alpha=1e-3, beta_min=1.0)),
    replace(CIFAR10_128, name="cifar10-vae", about="plain VAE on CIFAR-10 at 128x128", paper="Table 3, Figure 5"),
    replace(CIFAR10_128, name="cifar10-control-145", about="ControlVAE, KL = 145", paper="Tables 3, 8 and 9, Figure 5",
            control=PI.paper("images")),
]  # fmt: skip

PRESETS = {experiment.name: experiment for experiment in _PRESETS}


def preset(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
