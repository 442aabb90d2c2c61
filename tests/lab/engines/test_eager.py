"""The eager engine: independence of models, schedules, clipping and Adam against torch's."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import controlvae as cv
from controlvae.lab.config import Adam, override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.laws import Points

TINY = ["data.images=128", "training.batch=8", "model.channels=(4,4,4)", "model.hidden=16"]
CPU = torch.device("cpu")


def test_model_trains_the_same_alone_or_with_others():
    experiments = [
        override(preset("shapes2d-quick"), [*TINY, f"training.seed={seed}"]) for seed in (1, 2)
    ]
    examples = load_dataset(experiments[0].data)
    alone = EagerEngine(experiments[1:], examples, CPU)
    together = EagerEngine(experiments, examples, CPU)
    assert alone.advance(30)[:, 0].equal(together.advance(30)[:, 1])


@pytest.mark.parametrize("delayed", [False, True])
def test_beta_answers_the_kl_of_its_step_or_the_step_before(delayed):
    # The target is below the KL of an untrained network, so β is positive from the first step.
    experiment = override(
        preset("shapes2d-quick"), [*TINY, "control=PI(0.05)", f"training.delayed={delayed}"]
    )
    engine = EagerEngine([experiment], load_dataset(experiment.data), CPU)
    rows = engine.advance(3)[:, 0]
    control = cv.Controller(cv.PI(0.05))
    answers = [control.step(kl) for kl in rows[:, 1].tolist()]
    assert min(answers) > 0.004
    assert rows[:, 3].tolist() == pytest.approx([0.0, *answers[:-1]] if delayed else answers)


def test_scheduled_learning_rate_follows_the_step():
    sets = ["data.images=64", "training.batch=8", "optimiser.rate=Points((1,2),(1e-2,1e-12))"]
    experiment = override(preset("shapes2d-quick"), sets)
    engine = EagerEngine([experiment], load_dataset(experiment.data), CPU)
    weights = [engine.snapshot(0)["model.decoder.0.weight"].clone()]
    for _ in range(2):
        engine.advance(1)
        weights.append(engine.snapshot(0)["model.decoder.0.weight"].clone())
    changes = [(after - before).abs().max().item() for before, after in pairwise(weights)]
    assert changes[0] == pytest.approx(1e-2, rel=1e-3)  # Adam's first step is its learning rate
    assert changes[1] < 1e-9


def test_gradient_norm_is_clipped():
    optimiser = NetworkOptimiser(nn.Linear(3, 2), Adam(clip=0.5), CPU)
    optimiser.backward_and_step(100 * optimiser.module(torch.ones(1, 3)).sum())
    norm = nn.utils.get_total_norm([p.grad for p in optimiser.module.parameters()])
    assert norm.item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_equals_torch_and_resumes_from_a_snapshot(clip):
    def make_module():
        torch.manual_seed(3)
        # The loss does not depend on "unused", and "frozen" has no gradient.
        module = nn.ModuleDict(
            {"used": nn.Linear(4, 3), "unused": nn.Linear(2, 2), "frozen": nn.Linear(3, 1)}
        )
        module["frozen"].requires_grad_(False)
        return module

    expected, ours, resumed = modules = [make_module() for _ in range(3)]
    torch_adam = torch.optim.Adam(expected.parameters(), betas=(0.8, 0.99))
    settings = Adam(Points((1, 5), (1e-2, 1e-4)), 0.8, 0.99, clip)
    optimisers = [NetworkOptimiser(module, settings, CPU) for module in (ours, resumed)]
    for number, x in enumerate(torch.randn(6, 8, 4)):
        losses = [module["frozen"](module["used"](x).tanh()).square().sum() for module in modules]
        torch_adam.zero_grad()
        losses[0].backward()
        if clip:
            nn.utils.clip_grad_norm_(expected.parameters(), clip)
        torch_adam.param_groups[0]["lr"] = settings.at(number + 1.0)
        torch_adam.step()
        for optimiser, loss in zip(optimisers, losses[1:], strict=True):
            optimiser.set_rate(number)
            optimiser.backward_and_step(loss)
        if number == 2:
            saved = {name: value.clone() for name, value in optimisers[0].snapshot().items()}
            # A further step, which restoring the snapshot must undo.
            optimisers[1].backward_and_step(resumed["used"].weight.sum())
            optimisers[1].restore(saved)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-6, atol=1e-8)
        assert resumed.state_dict()[name].equal(ours.state_dict()[name])
