"""Presets for CIFAR-10 and CelebA: the methods of the paper's image tables."""

from dataclasses import replace

from controlvae.lab.config import (
    CIFAR10,
    Elbo,
    Experiment,
    Images,
    ImageVAEConfig,
    Training,
)
from controlvae.lab.config.presets import variant
from controlvae.laws import PI, Capacity, Geco, LagrangeMultiplier, Linear

# Images as in the released image code. The paper does not say how long it trained: every method
# gets the same 80,000 steps. The last step and the best one by validation are both reported.
_CIFAR10 = Experiment(
    "cifar10",
    data=CIFAR10(size=128),
    model=ImageVAEConfig(latents=100),
    objective=Elbo("squared-error"),
    training=Training(steps=80_000, batch=100, validation=5_000, validate_every=5_000),
)
_CELEBA = replace(
    _CIFAR10,
    name="celeba",
    data=Images("celeba/celeba_10k_89x109.npz", size=128, fit="stretch", held_out=0.1),
    model=ImageVAEConfig(latents=500),
    # 8,500 training faces: 470 epochs, validated often enough to see where over-fitting begins.
    training=replace(_CIFAR10.training, steps=40_000, validation=500, validate_every=1_000),
)


def _image_methods(
    base: Experiment, target: float, error: float, free_bits: float, paper: str
) -> list[Experiment]:
    """Return the methods of the paper's image tables and the baselines they lack.

    Args:
        base: The data set, model and length of training.
        target: The KL of ControlVAE, in nats.
        error: The reconstruction error of the paper's ControlVAE, its ELBO minus its KL. GECO with
            this error should end at the same KL.
        free_bits: Free nats per latent. Kingma et al. 2016 found 0.125 to 2 to help on CIFAR-10.
        paper: The table or figure of the paper.
    """
    name, steps = base.name, base.training.steps
    ramp, warm_up = Linear(0.0, target, steps=2 * steps // 5), Linear(0.0, 1.0, steps=steps // 4)
    return [
        variant(base, f"{name}-vae", "plain VAE", paper),
        variant(
            base,
            f"{name}-warm-up",
            f"plain VAE with β from 0 to 1 over {warm_up.steps:,} steps",
            control=warm_up,
        ),
        variant(
            base,
            f"{name}-control-{target:g}",
            f"ControlVAE, KL = {target:g}",
            paper,
            control=PI.paper("images", target),
        ),
        variant(
            base,
            f"{name}-lagrange-{target:g}",
            f"Lagrange multiplier, KL = {target:g}",
            paper,
            control=LagrangeMultiplier(target, alpha=1e-4),
        ),
        variant(
            base,
            f"{name}-beta-{target:g}",
            f"capacity β-VAE to {target:g} nats, γ = 30",
            paper,
            control=Capacity(ramp, gamma=30.0),
        ),
        variant(
            base,
            f"{name}-geco",
            f"GECO: the least KL at a reconstruction error of {error:g}",
            control=Geco(error),
        ),
        variant(
            base,
            f"{name}-free-bits",
            f"plain VAE with free bits, λ = {free_bits:g} for each latent",
            objective=Elbo(base.objective.likelihood, free_bits),
        ),
    ]


IMAGE_EXPERIMENTS = [
    *_image_methods(_CIFAR10, 145.0, error=220.0, free_bits=1.0, paper="Table 3, Figure 5"),
    *(
        variant(
            _CIFAR10,
            f"cifar10-control-145-batch-{batch}",
            f"ControlVAE, KL = 145, batches of {batch}",
            "Table 8",
            control=PI.paper("images"),
            training=replace(_CIFAR10.training, batch=batch),
        )
        for batch in (50, 150)
    ),
    *(
        variant(
            _CIFAR10,
            f"cifar10-control-145-latents-{latents}",
            f"ControlVAE, KL = 145, {latents} latents",
            "Table 9",
            control=PI.paper("images"),
            model=ImageVAEConfig(latents=latents),
        )
        for latents in (200, 500)
    ),
    *_image_methods(_CELEBA, 155.0, error=314.0, free_bits=0.25, paper="Table 4"),
    variant(
        _CELEBA,
        "celeba-control-190",
        "ControlVAE, KL = 190: as far above the plain VAE on 10,000 faces as 155 is on all faces",
        control=PI.paper("images", 190.0),
    ),
]
