"""Hold the policy entropy in Stable-Baselines3: SAC against its own tuning, PPO against a bonus.

    pip install stable-baselines3
    python benchmarks/hosts/sb3.py

SAC drives a point in a square to the origin. Its rival is SAC's own temperature tuning (dual ascent
with Adam at the learning rate of the policy). PPO swings up Acrobot. Its rival is a fixed
coefficient of 0.01. A bonus can only raise the entropy, so the targets of PPO lie above the 0.32
nats at which it ends without one. Takes about ten minutes of one core.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from common import OURS, make_entry, parse_arguments, save_entries, score_run
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

from controlvae.integrations.stable_baselines3 import ControlledSAC, EntropyBonus

Trace = tuple[list[float], list[float]]  # entropy and weight of every gradient step
_SAC_STEPS, _PPO_STEPS = 5_000, 61_440  # of the environment


class ReachOrigin(gym.Env):
    """Point in a square that has to reach the origin within 25 steps."""

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps, self._position = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._position, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        self._position = np.clip(self._position + 0.2 * action, -2, 2).astype(np.float32)
        reward = -float(np.square(self._position).sum())
        return self._position, reward, False, self._steps == 25, {}


def train_sac(algorithm: type[SAC], target: float, seed: int) -> Trace:
    """Train SAC and return the entropy and the temperature of every gradient step.

    Args:
        algorithm: `SAC`, or `ControlledSAC`.
        target: Target entropy in nats.
        seed: Seed of the run.
    """
    model = algorithm(
        "MlpPolicy",
        ReachOrigin(),
        target_entropy=target,
        learning_starts=100,
        batch_size=64,
        seed=seed,
        policy_kwargs={"net_arch": [32, 32]},
    )
    trace: Trace = ([], [])
    optimiser, logarithm = model.ent_coef_optimizer, model.log_ent_coef
    assert optimiser is not None
    assert logarithm is not None
    update = optimiser.step

    def record(*args: Any) -> None:
        assert logarithm.grad is not None
        trace[0].append(logarithm.grad.item() + target)  # the gradient is entropy minus target
        trace[1].append(logarithm.exp().item())
        update()

    optimiser.step = record  # type: ignore[method-assign]
    model.learn(_SAC_STEPS)
    return trace


class Recorder:
    """Coefficient of PPO that records the entropy and the weight of every minibatch."""

    def __init__(self, coefficient: Any) -> None:
        self.coefficient, self.trace = coefficient, ([], [])

    def __mul__(self, negative_entropy: torch.Tensor) -> torch.Tensor:
        product = self.coefficient * negative_entropy
        self.trace[0].append(-negative_entropy.item())
        self.trace[1].append((product / negative_entropy).item())
        return product


def train_ppo(coefficient: Any, seed: int) -> Trace:
    """Train PPO and return the entropy and the coefficient of every minibatch."""
    recorder = Recorder(coefficient)
    model = PPO(
        "MlpPolicy",
        make_vec_env("Acrobot-v1", n_envs=8, seed=seed),
        n_steps=64,
        batch_size=128,
        n_epochs=4,
        learning_rate=1e-3,
        ent_coef=recorder,
        seed=seed,
        policy_kwargs={"net_arch": [32, 32]},
    )
    model.learn(_PPO_STEPS)
    return recorder.trace


def main() -> None:
    """Train all runs and write `sb3.json`."""
    arguments = parse_arguments(__doc__, seeds=2)
    torch.set_num_threads(1)
    entries = []
    for target in (-2.0, -1.0, 0.5):
        runs = []
        for seed in arguments.seeds:
            runs.append(score_run(OURS, seed, target, *train_sac(ControlledSAC, target, seed)))
            runs.append(score_run("dual ascent", seed, target, *train_sac(SAC, target, seed)))
        note = (
            "point to the origin, two action dimensions; own: SAC's ent_coef='auto', whose Adam "
            "with lr 3e-4 moves the temperature by at most a factor of 4.4 in this short run"
        )
        entry = ("SB3 SAC", "stable-baselines3 gymnasium", "policy entropy", "nats", target, runs)
        entries.append(make_entry(*entry, note))
    fixed = {seed: train_ppo(0.01, seed) for seed in arguments.seeds}
    for target in (0.5, 0.7, 0.9):
        runs = []
        for seed in arguments.seeds:
            runs.append(score_run(OURS, seed, target, *train_ppo(EntropyBonus(target), seed)))
            runs.append(score_run("fixed 0.01", seed, target, *fixed[seed]))
        note = "Acrobot, 8 environments; own: a fixed ent_coef of 0.01. Steps are minibatches"
        entry = ("SB3 PPO", "stable-baselines3 gymnasium", "policy entropy", "nats", target, runs)
        entries.append(make_entry(*entry, note))
    save_entries("sb3", entries, arguments.out)


if __name__ == "__main__":
    main()
