"""Tests of the integration with Stable-Baselines3, with the real package."""

import numpy as np
import pytest
import torch

import controlvae as cv
from controlvae.errors import UserError

pytest.importorskip("stable_baselines3")
import gymnasium as gym
from stable_baselines3 import A2C, PPO

from controlvae.integrations.stable_baselines3 import ControlledSAC, EntropyBonus, EntropyLog


class Reach(gym.Env):
    """Point that has to reach the origin."""

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.position = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.position, {}

    def step(self, action):
        self.steps += 1
        self.position = np.clip(self.position + 0.2 * action, -2, 2).astype(np.float32)
        return self.position, -float(np.square(self.position).sum()), False, self.steps == 20, {}


def make_sac(**settings):
    settings = {"learning_starts": 20, "batch_size": 16, **settings}
    return ControlledSAC("MlpPolicy", Reach(), seed=0, policy_kwargs={"net_arch": [16]}, **settings)


def test_sac_takes_its_temperature_from_the_law():
    model = make_sac(target_entropy=-1.0)
    model.learn(60)
    controller = model.entropy_controller
    assert controller.laws[0] == cv.Auto(-1.0, direction="inverse")
    assert controller.state.step == 40
    assert model.log_ent_coef.exp().item() == pytest.approx(float(controller.beta), rel=1e-5)
    assert -3 < controller.stats()["measured"] < 2


def test_sac_starts_at_the_chosen_temperature_and_default_target():
    model = make_sac(ent_coef="auto_0.1")
    assert model.entropy_controller.laws[0].target == -2.0
    assert model.log_ent_coef.exp().item() == pytest.approx(0.1)
    law = cv.PI(0.5, direction="inverse", beta_init=0.3)
    assert make_sac(law=law).log_ent_coef.exp().item() == pytest.approx(0.3)


def test_sac_measures_the_entropy_for_any_target_of_its_loss():
    law, measured = cv.PI(0.5, direction="inverse", beta_init=0.3), []
    for loss_target in (-2.0, 7.0):
        model = make_sac(law=law, target_entropy=loss_target).learn(40)
        measured.append(model.entropy_controller.stats()["measured"])
    assert measured[0] == pytest.approx(measured[1], rel=1e-4)


def test_saved_sac_restores_the_state_of_its_law(tmp_path):
    model = make_sac(target_entropy=-1.0)
    model.learn(60)
    model.save(tmp_path / "model")
    loaded = ControlledSAC.load(tmp_path / "model", env=Reach())
    assert loaded.entropy_controller.laws == model.entropy_controller.laws
    saved, restored = (each.entropy_controller.state_dict() for each in (model, loaded))
    assert {name: float(value) for name, value in saved.items()} == {
        name: float(value) for name, value in restored.items()
    }
    assert loaded.log_ent_coef.item() == pytest.approx(model.log_ent_coef.item())
    loaded.learn(40)
    assert loaded.entropy_controller.state.step > model.entropy_controller.state.step


def test_sac_refuses_a_fixed_temperature():
    with pytest.raises(UserError, match="ent_coef"):
        make_sac(ent_coef=0.1)


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_bonus_updates_once_per_minibatch_and_is_saved(algorithm, tmp_path):
    settings = {"batch_size": 32, "n_epochs": 2} if algorithm is PPO else {}
    model = algorithm(
        "MlpPolicy",
        gym.make("CartPole-v1"),
        ent_coef=EntropyBonus(0.4),
        n_steps=64,
        seed=0,
        policy_kwargs={"net_arch": [16]},
        **settings,
    )
    model.learn(128)
    controller = model.ent_coef.controller
    assert controller.state.step == (8 if algorithm is PPO else 2)
    assert 0.5 < controller.stats()["measured"] < 0.7  # log 2 at the start
    assert controller.beta < 1.0
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model").ent_coef.controller
    assert torch.equal(torch.as_tensor(loaded.beta), torch.as_tensor(controller.beta))
    assert loaded.state.step == controller.state.step


def test_log_records_entropy_target_and_coefficient():
    bonus = EntropyBonus(0.4)
    model = PPO("MlpPolicy", gym.make("CartPole-v1"), ent_coef=bonus, n_steps=64, batch_size=64)
    records = {}
    callback = EntropyLog()
    model.learn(64)
    callback.init_callback(model)
    model.logger.record = records.__setitem__
    callback.on_rollout_start()
    assert records["train/ent_coef"] == bonus.controller.stats()["beta"]
    assert records["train/entropy_target"] == 0.4
    model.ent_coef = 0.01
    with pytest.raises(UserError, match="EntropyBonus"):
        callback.on_rollout_start()
