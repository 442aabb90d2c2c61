"""Keep the KL of LeRobot's ACT at a target, on chunks of actions that go left or right.

    python benchmarks/hosts/lerobot_act.py

Trains `lerobot.policies.act.ACTPolicy` without cameras: a joint state and a goal as inputs, chunks
of ten actions as outputs. Every chunk makes a detour to the left or to the right, at a random
speed. State and goal do not tell which, so a policy with an empty latent predicts the mean of both.
Rivals are LeRobot's `kl_weight = 10`, a lower fixed weight, and a linear warm-up to 10 over half of
the run.
"""

from collections.abc import Callable
from typing import Any

import torch
from common import OURS, make_entry, parse_arguments, save_entries, score_run
from torch import Tensor
from torchvision_stub import import_lerobot

import controlvae as cv
from controlvae.integrations.lerobot import control_kl
from controlvae.laws import Law

TARGETS = (1.0, 2.0, 4.0)
STEPS = 3_000
BATCH, CHUNK, JOINTS = 32, 10, 4
NOTE = (
    "ACTPolicy, 2-layer CVAE of width 32 with 8 latents, AdamW at 1e-3, two-sided action chunks. "
    "Rivals: the default kl_weight = 10, kl_weight = 0.1, and a linear warm-up to 10. "
    "torchvision was an empty stub, so cameras were not tested."
)


def make_policy() -> Any:
    """Return a small ACT policy without cameras."""
    import_lerobot()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (JOINTS,)),
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (JOINTS,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (JOINTS,))},
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        dim_model=32,
        n_heads=4,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=8,
        device="cpu",
    )
    return ACTPolicy(config)


def draw_batch(generator: torch.Generator, size: int = BATCH) -> dict[str, Tensor]:
    """Return states, goals and chunks that approach the goal with a detour to either side."""
    state = torch.randn(size, JOINTS, generator=generator)
    goal = torch.tanh(torch.randn(size, JOINTS, generator=generator))
    time = torch.linspace(0, 1, CHUNK)[None, :, None]
    side = torch.randint(0, 2, (size, 1, 1), generator=generator) * 2.0 - 1
    speed = torch.rand(size, 1, 1, generator=generator) + 0.5
    action = state[:, None] * (1 - time) + goal[:, None] * time
    action = action + side * torch.sin(torch.pi * speed * time)
    return {
        "observation.state": state,
        "observation.environment_state": goal,
        "action": action + 0.05 * torch.randn(action.shape, generator=generator),
        "action_is_pad": torch.zeros(size, CHUNK, dtype=torch.bool),
    }


def train(
    seed: int, law: Law | None = None, weight_at: Callable[[int], float] | None = None
) -> dict[str, list[float]]:
    """Train a policy and return the KL, the weight and the L1 loss of every step.

    Args:
        seed: Seed of weights and data.
        law: Control law of the KL.
        weight_at: Weight at a step, instead of a law.
    """
    torch.manual_seed(seed)
    policy = make_policy().train()
    optimiser = torch.optim.AdamW(policy.get_optim_params(), lr=1e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    if law is not None:
        control_kl(policy, law)
    trace: dict[str, list[float]] = {"kl": [], "weight": [], "l1": []}
    for step in range(STEPS):
        if weight_at is not None:
            policy.config.kl_weight = weight_at(step)
        loss, terms = policy.forward(draw_batch(generator))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        trace["kl"].append(terms["kld_loss"])
        trace["weight"].append(policy.config.kl_weight)
        trace["l1"].append(terms["l1_loss"])
    return trace


RIVALS: dict[str, Callable[[int], float]] = {
    "kl_weight 10": lambda step: 10.0,
    "kl_weight 0.1": lambda step: 0.1,
    "warm-up to 10": lambda step: 10 * min(1.0, 2 * step / STEPS),
}


def main() -> None:
    """Train all policies and write `lerobot_act.json`."""
    arguments = parse_arguments(__doc__, seeds=2)
    torch.set_num_threads(1)
    last = STEPS // 5
    rivals = {
        (name, seed): train(seed, weight_at=weight_at)
        for name, weight_at in RIVALS.items()
        for seed in arguments.seeds
    }
    entries = []
    for target in TARGETS:
        runs = []
        ours = {(OURS, seed): train(seed, law=cv.Auto(target)) for seed in arguments.seeds}
        for (method, seed), trace in {**ours, **rivals}.items():
            run = score_run(method, seed, target, trace["kl"], trace["weight"])
            run["l1"] = round(sum(trace["l1"][-last:]) / last, 5)
            print(f"target {target}, {method}, seed {seed}: L1 {run['l1']:.4f}", flush=True)
            runs.append(run)
        entries.append(make_entry("LeRobot ACT", "lerobot", "KL", "nats", target, runs, NOTE))
    save_entries("lerobot_act", entries, arguments.out)


if __name__ == "__main__":
    main()
