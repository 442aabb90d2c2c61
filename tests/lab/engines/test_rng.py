"""Per-step randomness: the noise generator and the batch orders."""

import pytest
import torch
from scipy import stats

from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.data.batch_order import BatchOrder
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.rng import make_batch_orders, noise_key, normal_noise


def draw_noise(seeds, steps, shape=(64, 10)):
    keys = torch.tensor([noise_key(seed) for seed in seeds])
    return normal_noise(keys[:, None], torch.as_tensor(steps)[None], shape)


def test_noise_is_standard_normal_with_independent_streams():
    noise = draw_noise(range(4), range(2_000)).double()  # (seeds, steps, 64, 10)
    assert stats.kstest(noise.flatten()[::7].numpy(), "norm").pvalue > 1e-3
    assert noise.std() == pytest.approx(1.0, abs=2e-3)
    by_seed = noise.flatten(1)
    between_seeds = torch.corrcoef(by_seed) - torch.eye(4, dtype=torch.float64)
    at_lags = [
        torch.corrcoef(torch.stack([by_seed[0, :-lag], by_seed[0, lag:]]))[0, 1]
        for lag in (1, 10, 640)
    ]
    assert max(between_seeds.abs().max(), *map(abs, at_lags)) < 5 / by_seed.shape[1] ** 0.5


def test_noise_depends_only_on_seed_and_step():
    together = draw_noise([1, 2, 3], range(5))
    assert torch.equal(together[1, 3], draw_noise([2], [3])[0, 0])
    assert draw_noise([1], range(1000), (640,)).abs().max() < 6


def test_epoch_visits_every_example_once_in_a_new_order():
    order = BatchOrder(count=103, batch=10, seed=4)
    epochs = [
        torch.cat([order.indices(step) for step in range(e * 10, e * 10 + 10)]).tolist()
        for e in range(2)
    ]
    assert all(len(set(epoch)) == 100 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert BatchOrder(103, 10, seed=4).indices(13).equal(order.indices(13))
    assert not BatchOrder(103, 10, seed=5).indices(13).equal(order.indices(13))
    with pytest.raises(UserError, match=r"5.* 10|10.* 5"):
        BatchOrder(5, 10, seed=1)


def test_critic_objectives_have_two_independent_batch_orders():
    experiment = override(preset("shapes2d-factor"), ["data.images=640"])
    first, second = make_batch_orders(experiment, load_dataset(experiment.data))
    shared = sum(
        len(set(first.indices(step).tolist()) & set(second.indices(step).tolist()))
        for step in range(10)
    )
    assert shared < 120  # 64 are expected to coincide in ten steps
