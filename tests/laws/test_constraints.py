"""Tests of directions, one-sided constraints and targets of any sign, for every feedback law."""

import math
from dataclasses import replace

import pytest
import torch

import controlvae as cv
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.overrides import override
from controlvae.lab.config.serialization import from_dict, to_dict

LAWS = {
    "PI": cv.PI(30.0),
    "PID": cv.PID(30.0),
    "LagrangeMultiplier": cv.LagrangeMultiplier(30.0, alpha=1e-3),
    "Geco": cv.Geco(30.0, alpha=1e-3, ema=0.9, beta_min=0.05, direction="direct"),
    "Auto": cv.Auto(30.0, beta_min=0.05),
    "Projected": cv.LagrangeMultiplier(30.0, alpha=1e-3, projected=True),
    "NuPI": cv.NuPI(30.0, nu=0.5),
    "IncrementalPI": cv.IncrementalPI(30.0, beta_init=1.0, ki=1e-3),
    "AdaptiveKL": cv.AdaptiveKL(30.0, beta_min=0.05, beta_init=1.0),
    "LogLagrange": cv.LogLagrange(30.0, 1e-3, beta_min=0.05, step_rule="sgd"),
    "Adam": cv.LogLagrange(30.0, 1e-3, beta_min=0.05),
}
SIDES = [
    (direction, constraint)
    for direction in ("direct", "inverse")
    for constraint in ("equal", "at_most", "at_least")
]
# Disturbance of the plant below with which the constraint holds at the resting bound.
SLACK = {
    ("direct", "at_most"): -40.0,
    ("direct", "at_least"): 20.0,
    ("inverse", "at_most"): -20.0,
    ("inverse", "at_least"): 40.0,
}
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


class Plant:
    """First-order system of which a weight of 0.5 gives 30, in both directions."""

    def __init__(self, direction, offset=0.0):
        self.direction, self.offset, self.value = direction, offset, offset

    def respond(self, beta):
        falling = 60.0 / (1.0 + 2.0 * beta)
        settled = falling if self.direction == "direct" else 60.0 - falling
        self.value += 0.05 * (self.offset + settled - self.value)
        return self.value

    def run(self, control, steps):
        for _ in range(steps):
            control.step(self.respond(control.beta))


@pytest.mark.parametrize(("direction", "constraint"), SIDES)
@every_law
def test_law_holds_its_target_in_each_direction(law, direction, constraint):
    control = cv.Controller(replace(law, direction=direction, constraint=constraint))
    plant = Plant(direction)
    plant.run(control, 6_000)
    assert plant.value == pytest.approx(30.0, rel=0.01)
    assert control.beta == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(("direction", "constraint"), SLACK)
@every_law
def test_one_sided_law_rests_and_comes_back(law, direction, constraint):
    law = replace(law, direction=direction, constraint=constraint)
    control, plant = cv.Controller(law), Plant(direction, SLACK[direction, constraint])
    plant.run(control, 4_000)
    assert control.beta == pytest.approx(getattr(law, law.resting_bound), abs=0.01)
    assert plant.value < 30.0 if constraint == "at_most" else plant.value > 30.0
    plant.offset = 0.0
    plant.run(control, 12_000)
    assert plant.value == pytest.approx(30.0, rel=0.01)
    plant.offset = SLACK[direction, constraint]
    plant.run(control, 12_000)
    assert control.beta == pytest.approx(getattr(law, law.resting_bound), abs=0.01)


@pytest.mark.parametrize("direction", ["direct", "inverse"])
@every_law
def test_target_may_be_negative(law, direction):
    control = cv.Controller(replace(law, target=-70.0, direction=direction))
    plant = Plant(direction, offset=-100.0)
    plant.run(control, 6_000)
    assert plant.value == pytest.approx(-70.0, rel=0.01)


@pytest.mark.parametrize("name", [name for name in LAWS if name not in ("Auto", "AdaptiveKL")])
def test_target_may_be_zero(name):
    law = LAWS[name]
    control, plant = cv.Controller(replace(law, target=0.0)), Plant("direct", offset=-30.0)
    plant.run(control, 6_000)
    assert plant.value == pytest.approx(0.0, abs=0.3)


@pytest.mark.parametrize(("direction", "constraint"), SIDES)
@every_law
def test_floats_and_tensors_agree_in_each_direction(law, direction, constraint):
    law = replace(law, direction=direction, constraint=constraint)
    trace = [10.0, 35.0, 60.0, math.nan, -5.0, 31.0, 29.0, 30.0, 50.0]
    by_float, by_tensor = cv.Controller(law), cv.Controller(law)
    by_vector = cv.Controller(law, models=2)
    for x in trace:
        beta = by_float.step(x)
        assert by_tensor.step(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(beta)
        vector = by_vector.step(torch.tensor([x, x], dtype=torch.float64))
        assert vector.tolist() == pytest.approx([beta, beta])


@every_law
def test_inverse_mirrors_direct(law):
    """A law on 60 - x with the set point 30 does what the inverse law does on x."""
    direct, inverse = cv.Controller(law), cv.Controller(replace(law, direction="inverse"))
    if isinstance(law, cv.Auto | cv.AdaptiveKL):
        pytest.skip("it acts on the relative error, which has no such mirror")
    for x in (10.0, 35.0, 60.0, 12.0, 45.0, 30.0):
        assert inverse.step(x) == pytest.approx(direct.step(60.0 - x), rel=1e-12)
        assert inverse.stats()["error"] == 30.0 - inverse.stats()["measured"]


@pytest.mark.parametrize("direction", ["direct", "inverse"])
@pytest.mark.parametrize(
    "law", [cv.PI(30.0), cv.PID(30.0), LAWS["Geco"], cv.Auto(30.0, reach_in=400)], ids=repr
)
def test_new_target_does_not_move_the_weight_in_either_direction(law, direction):
    control, plant = cv.Controller(replace(law, direction=direction)), Plant(direction)
    plant.run(control, 4_000)
    before = control.beta
    control.set_target(29.0)
    assert control.step(plant.value) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize(
    ("direction", "constraint", "expected"),
    [
        ("direct", "equal", [-7.0, 0.0, 7.0]),
        ("direct", "at_most", [0.0, 0.0, 7.0]),
        ("direct", "at_least", [-7.0, 0.0, 0.0]),
        ("inverse", "equal", [7.0, 0.0, -7.0]),
        ("inverse", "at_least", [7.0, 0.0, 0.0]),
        ("inverse", "at_most", [0.0, 0.0, -7.0]),
    ],
)
def test_capacity_penalises_the_violated_side_alone(direction, constraint, expected):
    law = cv.Capacity(0.0, gamma=7.0, direction=direction, constraint=constraint)
    assert [cv.Controller(law).step(x) for x in (-2.0, 0.0, 2.0)] == expected


@pytest.mark.parametrize("name", LAWS)
def test_class_methods_set_the_constraint(name):
    law = type(LAWS[name])
    assert law.at_most(3.0) == law(3.0, constraint="at_most")
    assert law.at_least(3.0, direction="inverse") == law(
        3.0, direction="inverse", constraint="at_least"
    )


def test_infinite_resting_bound_becomes_the_initial_weight():
    assert cv.LagrangeMultiplier.at_least(3.0).beta_max == 1.0
    assert cv.LagrangeMultiplier.at_least(3.0, beta_init=2.0).beta_max == 2.0
    assert cv.LagrangeMultiplier.at_least(3.0, beta_min=5.0).beta_max == 5.0
    assert cv.LagrangeMultiplier.at_least(3.0, beta_max=7.0).beta_max == 7.0
    assert cv.LagrangeMultiplier.at_most(3.0).beta_max == math.inf
    assert cv.LagrangeMultiplier(3.0).resting_bound is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "up"}, "direct, inverse"),
        ({"constraint": "below"}, "equal, at_most, at_least"),
        ({"constraint": "at_most", "anti_windup": "freeze"}, "conditional"),
        ({"target": math.inf}, "finite"),
    ],
)
def test_unusable_constraints_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        cv.PI(**{"target": 3.0, **settings})


def test_rules_for_gains_are_about_a_positive_kl(recwarn):
    cv.PI(-3.0)
    cv.PI(1.5, direction="inverse")
    assert not recwarn.list


def test_simulation_refuses_the_inverse_direction():
    plant = cv.Plant(kl_at_one=12.0, slope=0.4, lag=60)
    with pytest.raises(ValueError, match="direction"):
        cv.simulate(cv.PI(18.0, direction="inverse"), plant, steps=10)


def test_law_of_a_user_needs_no_direction():
    class Doubling(cv.laws.Feedback):
        target, beta_min, beta_max, beta_init, ema = 3.0, 0.0, 1.0, None, 0.0

        def update(self, state, measured, xp):
            now = self.sense(state, measured, xp)
            return self.commit(state, now, -now.error, (state.integral,), xp)

    assert cv.Controller(Doubling()).step(3.5) == 0.5


@pytest.mark.parametrize("law", [cv.PI(18.0), cv.Geco(18.0), cv.Capacity(18.0), cv.Auto(18.0)])
def test_experiments_without_the_new_fields_load(law):
    experiment = Experiment("earlier", control=law)
    data = to_dict(experiment)
    del data["control"]["direction"], data["control"]["constraint"]
    assert from_dict(Experiment, data) == experiment


def test_direction_is_a_setting_of_experiments():
    experiment = Experiment("entropy", control=cv.LagrangeMultiplier(18.0))
    sets = ["control.constraint=at_least", "control.direction=inverse"]
    changed = override(experiment, sets).control
    assert changed == cv.LagrangeMultiplier.at_least(18.0, direction="inverse")


def test_experiment_refuses_a_negative_kl():
    with pytest.raises(ValueError, match="positive"):
        Experiment("wrong", control=cv.PI(-1.0))
    Experiment("capacity", control=cv.Capacity(cv.Linear(0.0, 5.0, steps=10)))
    Experiment("density", control=cv.Geco(-100.0))
