"""Keep the L0 of a sparse autoencoder of SAELens at a target.

    python benchmarks/hosts/sae_lens_l0.py

Trains `sae_lens.JumpReLUTrainingSAE` with `SAETrainer` on activations that are sums of a few of 96
random directions. Rivals are SAELens's default `l0_coefficient = 1`, the 5 of its documentation,
and its own target L0, the quadratic penalty of `jumprelu_sparsity_loss_mode="quadratic"`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from common import OURS, make_entry, parse_arguments, save_entries, score_run
from sae_lens import JumpReLUTrainingSAE, JumpReLUTrainingSAEConfig, SAETrainer
from sae_lens.config import SAETrainerConfig
from torch import Tensor

import controlvae as cv
from controlvae.integrations.sae_lens import control_l0

TARGETS = (4.0, 8.0, 16.0)
STEPS = 5_000
BATCH, WIDTH, LATENTS, FEATURES, ACTIVE = 256, 32, 128, 96, 6
NOTE = (
    "JumpReLUTrainingSAE under SAETrainer, 128 latents on 32-dimensional sums of about 6 of 96 "
    "directions, Adam at 1e-3. Rivals: l0_coefficient = 1 (default) and 5 (documentation), and "
    "the quadratic penalty around target_l0 with l0_coefficient = 1."
)


def draw_activations(seed: int) -> Iterator[Tensor]:
    """Yield batches of sums of a few random directions, with random positive amplitudes."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(FEATURES, WIDTH, generator=generator)
    directions /= directions.norm(dim=1, keepdim=True)
    while True:
        is_active = torch.rand(BATCH, FEATURES, generator=generator) < ACTIVE / FEATURES
        amplitudes = 0.5 + torch.rand(BATCH, FEATURES, generator=generator)
        yield (is_active * amplitudes) @ directions


def make_trainer(seed: int, lr: float = 1e-3, **settings: Any) -> SAETrainer[Any, Any]:
    """Return a trainer of a JumpReLU autoencoder.

    Args:
        seed: Seed of weights and data.
        lr: Learning rate.
        **settings: Settings of `JumpReLUTrainingSAEConfig`.
    """
    torch.manual_seed(seed)
    sae = JumpReLUTrainingSAE(JumpReLUTrainingSAEConfig(d_in=WIDTH, d_sae=LATENTS, **settings))
    cfg = SAETrainerConfig(
        total_training_samples=BATCH * STEPS,
        train_batch_size_samples=BATCH,
        lr=lr,
        lr_end=lr,  # required, but not used by a constant learning rate
    )
    return SAETrainer(cfg, sae, draw_activations(seed))


def train(trainer: SAETrainer[Any, Any]) -> dict[str, list[float]]:
    """Train and return L0, the coefficient and the explained variance of every step."""
    trace: dict[str, list[float]] = {"l0": [], "weight": [], "explained": []}
    while trainer.n_training_samples < trainer.cfg.total_training_samples:
        trace["weight"].append(float(trainer.coefficient_schedulers["l0"].value))
        output = trainer.step(next(trainer.data_provider))
        trainer.n_training_steps += 1
        trace["l0"].append(output.feature_acts.bool().float().sum(-1).mean().item())
        residual = (output.sae_out - output.sae_in).pow(2).sum()
        total = (output.sae_in - output.sae_in.mean(0)).pow(2).sum()
        trace["explained"].append(1 - (residual / total).item())
    return trace


def train_controlled(seed: int, target: float) -> dict[str, list[float]]:
    """Train with a controlled coefficient."""
    trainer = make_trainer(seed)
    control_l0(trainer, cv.Auto(target))
    return train(trainer)


def main() -> None:
    """Train all autoencoders and write `sae_lens_l0.json`."""
    arguments = parse_arguments(__doc__, seeds=2)
    torch.set_num_threads(1)
    last = STEPS // 5
    fixed = {
        (f"l0_coefficient {value:g}", seed): train(make_trainer(seed, l0_coefficient=value))
        for value in (1.0, 5.0)
        for seed in arguments.seeds
    }
    entries = []
    for target in TARGETS:
        traces = {(OURS, seed): train_controlled(seed, target) for seed in arguments.seeds}
        quadratic = {"jumprelu_sparsity_loss_mode": "quadratic", "target_l0": target}
        for seed in arguments.seeds:
            traces["quadratic target_l0", seed] = train(make_trainer(seed, **quadratic))
        runs = []
        for (method, seed), trace in {**traces, **fixed}.items():
            run = score_run(method, seed, target, trace["l0"], trace["weight"])
            run["explained_variance"] = round(sum(trace["explained"][-last:]) / last, 5)
            print(f"L0 {target:g}, {method}, seed {seed}: {run['explained_variance']:.4f}")
            runs.append(run)
        entries.append(make_entry("SAELens", "sae-lens", "L0", "latents", target, runs, NOTE))
    save_entries("sae_lens_l0", entries, arguments.out)


if __name__ == "__main__":
    main()
