"""Set points of a rate-conditioned model in training."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import controlvae as cv
from controlvae.lab.config import RateRange, from_dict, override, preset, to_dict
from controlvae.lab.config.digest import config_digest
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.rate_bins import HostControllers, RateBins, ramped_targets
from controlvae.lab.engines.select import make_engine
from controlvae.laws.backend import FLOATS

CPU = torch.device("cpu")
TINY = ["data.images=128", "training.batch=16", "model.channels=(4,4,4)", "model.hidden=16"]


def small_experiment(*sets):
    base = override(preset("shapes2d-quick"), TINY)
    rates = RateRange(3, 24, bins=4)
    return override(replace(base, control=cv.Auto(8.5), rates=rates), list(sets))


@pytest.mark.parametrize("law", [cv.Auto(8.0), cv.PI(8.0), cv.LagrangeMultiplier(8.0)])
@pytest.mark.parametrize("delayed", [False, True])
def test_controllers_on_the_host_equal_one_with_several_models(law, delayed):
    laws = [replace(law, target=target) for target in (3.0, 8.0, 20.0)]
    host = HostControllers(laws, delayed)
    vector = cv.Controller(laws, delayed=delayed, monitor=False)
    draws = torch.Generator().manual_seed(1)
    for _ in range(50):
        kl = 20 * torch.rand(3, dtype=torch.float64, generator=draws)
        torch.testing.assert_close(host.step(kl), vector.step(kl), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(host.signals().beta, vector.signals().beta)
    other = cv.Controller(laws, delayed=delayed, monitor=False)
    other.load_state_dict(host.state_dict())  # from a CPU to a GPU
    again = HostControllers(laws, delayed)
    again.load_state_dict(vector.state_dict())  # and back
    kl = torch.tensor([1.0, 9.0, 30.0], dtype=torch.float64)
    expected = vector.step(kl)
    for each in (other, again):
        torch.testing.assert_close(each.step(kl), expected, rtol=1e-12, atol=1e-14)


def test_means_belong_to_the_examples_of_a_set_point():
    bins = RateBins(small_experiment(), CPU)
    values = torch.arange(16.0)
    expected = [values[place::4].mean() for place in range(4)]
    assert bins.average(values).tolist() == expected
    assert bins.average(torch.stack([values, -values], 1))[:, 1].tolist() == [-x for x in expected]


def test_all_set_points_start_at_the_highest_one():
    targets = ramped_targets(small_experiment("training.steps=100"))
    set_points = RateRange(3, 24, bins=4).set_points
    assert targets[-1] == set_points[-1]
    for target, set_point in zip(targets[:-1], set_points, strict=False):
        assert target.at(float(0), FLOATS) == pytest.approx(set_points[-1])
        assert (
            target.at(float(25), FLOATS) == target.at(float(99), FLOATS) == pytest.approx(set_point)
        )
    assert ramped_targets(small_experiment("rates.ramp=0")) == list(set_points)


def test_set_points_cover_the_range_with_equal_ratios():
    points = RateRange(2, 32, bins=5).set_points
    assert points[0] < 2
    assert points[-1] > 32
    ratios = [high / low for low, high in pairwise(points)]
    assert ratios == pytest.approx([ratios[0]] * 4)


def test_row_holds_the_numbers_of_each_set_point():
    experiment = small_experiment()
    engine = make_engine([experiment], load_dataset(experiment.data), CPU)
    rows = engine.advance(5)[:, 0]
    columns = row_columns(experiment)
    numbers = dict(zip(columns, rows[-1].tolist(), strict=False))
    assert len(columns) == 7 + 3 * 4
    assert rows.shape[1] == len(columns) + experiment.model.latents
    for kind in ("kl", "reconstruction", "beta"):
        parts = [value for name, value in numbers.items() if name.startswith(f"{kind}@")]
        assert numbers[kind] == pytest.approx(sum(parts) / 4)
    assert numbers["kl"] == pytest.approx(rows[-1, len(columns) :].sum().item(), rel=1e-5)


def test_resumed_training_equals_unbroken_training():
    experiment = small_experiment("training.steps=40")
    examples = load_dataset(experiment.data)
    whole = make_engine([experiment], examples, CPU)
    first = whole.advance(15)
    saved = whole.snapshot(0)
    rest = whole.advance(10)
    resumed = make_engine([experiment], examples, CPU)
    resumed.restore(0, 15, saved)
    assert resumed.advance(10).equal(rest)
    assert first.shape[0] == 15


def test_settings_survive_json_and_leave_other_digests_alone():
    experiment = small_experiment()
    assert from_dict(Experiment, to_dict(experiment)) == experiment
    assert config_digest(experiment) != config_digest(replace(experiment, rates=None))
    assert "rates" not in str(to_dict(preset("shapes2d-quick")).get("model"))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["training.batch=10"], "multiple of rates.bins"),
        (["control=Constant(1)"], "law with a target for the KL"),
        (["control=Geco(100)"], "law with a target for the KL"),
        (["objective.free_bits=0.1", "control=Constant(1)"], "needs"),
        (["rates.bins=1"], "bins must lie in 2..256"),
        (["rates.low=30"], "the lower first"),
        (["rates.ramp=1"], "ramp must lie in"),
    ],
)
def test_unfit_settings_are_refused(sets, message):
    with pytest.raises((cv.errors.UserError, ValueError), match=message):
        small_experiment(*sets)
