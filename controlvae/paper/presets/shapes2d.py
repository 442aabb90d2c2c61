"""Presets for 2D Shapes: the paper's settings, and runs in a tenth of its steps."""

from dataclasses import replace

from controlvae.lab.config import (
    Adam,
    BetaTC,
    ConvVAEConfig,
    Elbo,
    Experiment,
    Shapes2D,
    TotalCorrelation,
    Training,
)
from controlvae.lab.config.presets import unbounded_pi, variant
from controlvae.laws import PI, Capacity, Constant, LagrangeMultiplier, Linear, Points, Staircase


def _ramp(stop: float, step: float = 0.15) -> Staircase:
    """Return the paper's set point for 2D Shapes: from 0.5 nats, one step every 5,000."""
    return Staircase(start=0.5, stop=stop, step=step, every=5_000)


def _paper_pi(stop: float, step: float = 0.15) -> PI:
    return PI.paper("disentangling", target=_ramp(stop, step))


_SHAPES2D = Experiment(
    "shapes2d", data=Shapes2D(), model=ConvVAEConfig(latents=10), training=Training()
)
# Per-latent KL weights; the last one also applies to all latents after it. Two latents that become
# active together share an angle between them. The fifth latent therefore becomes active only once
# the fourth encodes orientation alone.
_LATE_FIFTH = (1.0, 1.0, 1.0, 1.0, Points((450_000, 600_000), (3.0, 1.0)))
# At the start four latents share the two positions, and in some runs they do not reduce to two in
# time. So only the first two latents have a low weight.
_LATE_THIRD = Points((40_000, 60_000), (3.0, 1.0))
_STAGGERED = (1.0, 1.0, _LATE_THIRD, _LATE_THIRD, _LATE_FIFTH[-1])
# After CascadeVAE (Jeong & Song, 2019): one latent is open at the start, and another opens every
# 60,000 steps. A closed latent has five times the KL weight of an open one. The numbers are ours.
_OPENINGS = tuple(Points((60_000 * n, 60_000 * n + 1), (5.0, 1.0)) for n in range(1, 10))
_CASCADE: tuple[float | Points, ...] = (1.0, *_OPENINGS)
_FACTOR = replace(
    _SHAPES2D,
    model=ConvVAEConfig(latents=10, hidden=128, initial="normal"),
    objective=TotalCorrelation(),
    training=Training(steps=700_000),  # the length used by the public FactorVAE script
)
SHAPES2D_EXPERIMENTS = [
    variant(_SHAPES2D, "shapes2d-vae", "plain VAE", control=Constant(1.0)),
    variant(_SHAPES2D, "shapes2d-beta", "β-VAE (β = 4, Higgins et al.)", control=Constant(4.0)),
    variant(
        _SHAPES2D,
        "shapes2d-beta-100",
        "β-VAE with capacity 15 and γ = 100, with its published network and learning rate",
        "Tables 1 and 2, Figure 3",
        model=ConvVAEConfig(latents=10, channels=(32, 32, 32, 32), dense=(256,)),
        optimiser=Adam(rate=5e-4),
        control=Capacity(Linear(0.0, 15.0, steps=100_000), gamma=100.0),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-beta-100-matched",
        "the same law with ControlVAE's network, learning rate and set point of 16",
        control=Capacity(_ramp(16), gamma=100.0),
    ),
    *(
        variant(
            _SHAPES2D,
            f"shapes2d-control-{stop}",
            f"ControlVAE, KL = {stop}",
            "Tables 1, 2 and 6, Figure 3" if stop in (16, 18) else "Table 6",
            control=_paper_pi(stop),
        )
        for stop in (16, 17, 18, 19)
    ),
    variant(
        _SHAPES2D,
        "shapes2d-weighted-18",
        "ControlVAE, KL = 18; higher KL weight from the fifth latent on until step 600,000",
        control=_paper_pi(18),
        objective=Elbo(kl_weights=_LATE_FIFTH),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-staggered-18",
        "the same; initial β of 80, third and fourth latent weighted higher until step 60,000",
        control=replace(_paper_pi(18), beta_init=80.0),
        objective=Elbo(kl_weights=_STAGGERED),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-cascade-18",
        "ControlVAE, KL = 18; latents open one by one, every 60,000 steps, as in CascadeVAE",
        control=_paper_pi(18),
        objective=Elbo(kl_weights=_CASCADE),
    ),
    *(
        variant(
            _SHAPES2D,
            f"shapes2d-control-16-step-{step:g}",
            f"ControlVAE, KL = 16, ramp step {step:g}",
            "Table 7",
            control=_paper_pi(16, step),
        )
        for step in (0.05, 0.1, 0.2)
    ),
    variant(
        _FACTOR,
        "shapes2d-factor",
        "FactorVAE (γ = 10) with its published network and initialisation",
        "Tables 1 and 2, Figure 3",
        control=Constant(10.0),
    ),
    variant(
        _FACTOR,
        "shapes2d-control-factor",
        "Control-FactorVAE: total correlation controlled at 0.3",
        "Tables 1 and 2, Figure 3",
        control=unbounded_pi(0.3),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-factor-matched",
        "FactorVAE (γ = 10) with ControlVAE's network",
        objective=TotalCorrelation(),
        control=Constant(10.0),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-control-factor-matched",
        "Control-FactorVAE with ControlVAE's network",
        objective=TotalCorrelation(),
        control=unbounded_pi(0.3),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-beta-tc",
        "β-TCVAE (β = 6, Chen et al.) with ControlVAE's network, batch and rate",
        objective=BetaTC(),
        control=Constant(6.0),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-dynamic-16",
        "the authors' later variant: initial β of 100, KL averaged over five steps",
        control=unbounded_pi(_ramp(16), ki=5e-3, beta_min=1.0, beta_init=100.0, ema=0.8),
    ),
    variant(
        _SHAPES2D,
        "shapes2d-lagrange-16",
        "Lagrange multiplier, KL = 16",
        control=LagrangeMultiplier(_ramp(16), alpha=1e-3, beta_min=1.0),
    ),
]

# A tenth of the paper's steps. The large β of the early ramp is what separates factors. So β starts
# at that value instead of winding up to it, and the learning rate is ten times the paper's until
# the ramp is nearly over.
_SHORT = replace(
    _SHAPES2D,
    optimiser=Adam(rate=Points((90_000, 150_000), (1e-3, 1e-4))),
    training=Training(steps=150_000),
)
_SHORT_RAMP = Points((0, 4_000, 25_000, 80_000, 120_000), (1.0, 2.0, 7.0, 9.5, 16.0))
SHORT_EXPERIMENTS = [
    variant(
        _SHORT,
        "shapes2d-short",
        "ControlVAE, KL = 16, in a tenth of the steps, with an initial β of 80",
        control=unbounded_pi(_SHORT_RAMP, ki=0.01, beta_min=1.0, beta_init=80.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-from-one",
        "the same with β starting at its lower bound, as published",
        control=unbounded_pi(_SHORT_RAMP, ki=0.01, beta_min=1.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-lagrange",
        "Lagrange multiplier with the same set point and initial β",
        control=LagrangeMultiplier(_SHORT_RAMP, alpha=0.01, beta_min=1.0, beta_init=80.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-beta-100",
        "capacity β-VAE (γ = 100) with the same set point",
        control=Capacity(_SHORT_RAMP, gamma=100.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-beta",
        "β-VAE (β = 4) with the same number of steps",
        control=Constant(4.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-mean",
        "β fixed at 10.5, the mean β of shapes2d-short",
        control=Constant(10.5),
    ),
    variant(
        _SHORT,
        "shapes2d-short-vae",
        "plain VAE with the same number of steps",
        control=Constant(1.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-dynamic",
        "the authors' later variant: same set point, initial β of 100, KL averaged over 5 steps",
        control=unbounded_pi(_SHORT_RAMP, ki=0.01, beta_min=1.0, beta_init=100.0, ema=0.8),
    ),
    variant(
        _SHORT,
        "shapes2d-short-beta-tc",
        "β-TCVAE (β = 6) with the same number of steps",
        objective=BetaTC(),
        control=Constant(6.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-factor",
        "FactorVAE (γ = 10) with the same number of steps",
        objective=TotalCorrelation(),
        control=Constant(10.0),
    ),
    variant(
        _SHORT,
        "shapes2d-short-control-factor",
        "Control-FactorVAE: total correlation controlled at 0.3, with the same number of steps",
        objective=TotalCorrelation(),
        control=unbounded_pi(0.3, ki=0.01),
    ),
]
