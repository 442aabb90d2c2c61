"""Presets for Penn Treebank and Switchboard: the paper's text and dialog experiments."""

from dataclasses import replace

from controlvae.lab.config import (
    Adam,
    BagOfWords,
    DialogVAEConfig,
    Elbo,
    Experiment,
    PennTreebank,
    Switchboard,
    TextVAEConfig,
    Training,
)
from controlvae.lab.config.presets import variant
from controlvae.laws import PI, Cyclical, Linear, Sigmoid

_PTB = Experiment(
    "ptb",
    data=PennTreebank(),
    model=TextVAEConfig(),
    objective=Elbo("tokens"),
    optimiser=Adam(rate=1e-3),
    training=Training(
        steps=80_000, batch=32, validation=3_370, validate_every=4_000, widths="shared"
    ),
)
# The released code trains 30 "epochs" of at most 3,000 steps: about ten passes over 2,316 dialogs.
_DIALOG_PERIOD = 28_950
_DIALOG = Experiment(
    "dialog",
    data=Switchboard(join_acts=True),
    model=DialogVAEConfig(),
    objective=BagOfWords(),
    optimiser=Adam(rate=1e-3, clip=5.0),
    training=Training(steps=69_000, batch=30, widths="shared"),
)
TEXT_EXPERIMENTS = [
    variant(_PTB, "ptb-vae", "plain VAE on Penn Treebank"),
    variant(
        _PTB,
        "ptb-warm-up",
        "plain VAE with β from 0 to 1 over 20,000 steps",
        control=Linear(0.0, 1.0, steps=20_000),
    ),
    variant(
        _PTB,
        "ptb-free-bits",
        "plain VAE with free bits, λ = 0.05 for each of 64 latents: 3.2 nats",
        objective=Elbo("tokens", free_bits=0.05),
    ),
    *(
        variant(
            _PTB,
            f"ptb-control-{target:g}",
            f"ControlVAE, KL = {target:g}",
            "Figure 6",
            control=PI.paper("text", target),
        )
        for target in (1.5, 3.0)
    ),
    *(
        variant(
            _PTB,
            f"ptb-cost-{steps // 1000}k",
            f"cost annealing over {steps:,} steps",
            "Figure 6",
            control=Sigmoid(steps=steps),
        )
        for steps in (20_000, 50_000)
    ),
    *(
        variant(
            _PTB,
            f"ptb-cyclical-{cycles}",
            f"cyclical annealing, {cycles} cycles",
            "Figure 6",
            control=Cyclical(period=80_000 // cycles),
        )
        for cycles in (4, 8)
    ),
    *(
        variant(
            _DIALOG,
            f"dialog-control-{target:g}",
            f"ControlVAE, KL = {target:g}, on Switchboard",
            "Table 5",
            control=PI.paper("text", target),
        )
        for target in (25.0, 35.0)
    ),
    variant(
        _DIALOG,
        "dialog-cost",
        "cost annealing over 20,000 steps on Switchboard",
        "Table 5",
        control=Sigmoid(steps=20_000),
    ),
    variant(
        _DIALOG,
        "dialog-cyclical",
        "cyclical annealing, 28,950 steps per cycle, on Switchboard",
        "Table 5",
        control=Cyclical(period=_DIALOG_PERIOD),
    ),
    # 69,000 steps end inside the third cycle, at a low β.
    variant(
        _DIALOG,
        "dialog-cyclical-2",
        "cyclical annealing to the end of the second cycle, step 57,900, on Switchboard",
        control=Cyclical(period=_DIALOG_PERIOD),
        training=replace(_DIALOG.training, steps=2 * _DIALOG_PERIOD),
    ),
]
