"""Overrides are typed, and wrong ones are answered with what to write."""

import itertools
import math
import re

import pytest

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.config import (
    PRESETS,
    Grammar,
    RenamedWarning,
    TextVAEConfig,
    iter_settings,
    override,
    preset,
)


@pytest.mark.parametrize(
    ("assignment", "read", "value"),
    [
        ("control.ki=5e-4", lambda e: e.control.ki, 5e-4),
        ("control.beta_max=inf", lambda e: e.control.beta_max, math.inf),
        ("control.target.stop=17", lambda e: e.control.target.stop, 17.0),
        ("control.target=20", lambda e: e.control.target, 20.0),
        (
            "control=LagrangeMultiplier(20, alpha=0.001)",
            lambda e: e.control,
            cv.LagrangeMultiplier(20.0, 0.001),
        ),
        (
            "control.target=Linear(1, 18, steps=1_000)",
            lambda e: e.control.target,
            cv.Linear(1.0, 18.0, 1000),
        ),
        ("training.steps=1e6", lambda e: e.training.steps, 1_000_000),
        ("model.channels=8,8,16,16", lambda e: e.model.channels, (8, 8, 16, 16)),
        ("data.images=none", lambda e: e.data.images, None),
    ],
)
def test_override_has_the_type_of_its_field(assignment, read, value):
    assert read(override(preset("shapes2d-control-16"), [assignment])) == value


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("contrl.ki=1", "did you mean 'control'"),
        ("control.target.stpo=1", "did you mean 'stop'"),
        ("steps=600", "did you mean training.steps"),
        ("lr=0.001", "did you mean optimiser.rate"),
        ("batch_size=32", "did you mean training.batch"),
        ("optimiser.lr=0.001", "did you mean optimiser.rate"),
        ("target=18", "did you mean control.target"),
        ("control=Auto", "control=Auto(18)"),
        ("control=Auto()", "control=Auto(18)"),
        ("control.open_loop=true", "no field of PI 'open_loop'"),
        ("data.path=my.txt", "'data=KIND', KIND one of Images(path=...), TextFile(path=...)"),
        ("control.gamma=30", "'control=KIND', KIND one of Capacity(target=..., gamma=...)"),
        ("control.ki.deep=1", "plain value"),
        ("training.steps=1.5", "training.steps must be a whole number, got 1.5"),
        ("training.batch=true", "whole number"),
        ("data.size=63", "one of 64, 32"),
        ("control=Thermostat(3)", "no kind of control 'Thermostat'"),
        ("control.target=Staircase(1, 2)", "lacks step"),
        ("control.target=__import__('os')", "control.target"),
        ("control.beta_min=nan", "beta_min"),
        ("training.steps", "part.field=value"),
        ("control=PI(18, target=3)", "gives target twice"),
        ("control=PI(**{'target': 3})", "control must be"),
        ("control=Staircase(18, 1, inf, 5)", "step must be"),
        ("optimiser.rate=inf", "positive and finite"),
        ("data=TextFile(my.txt)", "put words in quotes, as in 'data=TextFile(\""),
        ("control=Auto(18", "close every parenthesis"),
    ],
)
def test_wrong_override_raises_with_its_path(assignment, message):
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        override(preset("shapes2d-control-16"), [assignment])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", PRESETS)
def test_listed_settings_reproduce_the_preset(name):
    settings = dict(iter_settings(preset(name)))
    parts = {path for path in settings if any(each.startswith(f"{path}.") for each in settings)}
    assignments = [
        f"{path}={value}" for path, value in settings.items() if path not in parts and "." in path
    ]
    assert override(preset(name), assignments) == preset(name)


def test_order_of_overrides_does_not_matter():
    assignments = [
        "data=Grammar()",
        "model=TextVAE(8)",
        "model.width=64",
        "objective.likelihood=tokens",
        "control=PI(3)",
    ]
    results = {
        override(preset("shapes2d-quick"), list(order))
        for order in itertools.permutations(assignments)
    }
    (text,) = results
    model = TextVAEConfig(8, width=64)
    assert (text.data, text.model, text.control) == (Grammar(), model, cv.PI(3.0))
    with pytest.raises(UserError, match=r"^Experiment: .*model=TextVAE"):
        override(preset("shapes2d-quick"), assignments[:2])


@pytest.mark.parametrize("assignment", ["objective.prices=(1,2)", "objective=Elbo(prices=(1,2))"])
def test_former_name_of_setting_is_accepted_with_a_warning(assignment):
    with pytest.warns(RenamedWarning, match="kl_weights") as caught:
        experiment = override(preset("shapes2d-quick"), [assignment])
    assert experiment.objective.kl_weights == (1.0, 2.0)
    assert len(caught) == 1


def test_biased_estimate_needs_an_open_loop_weight():
    with pytest.raises(UserError, match="open-loop"):
        override(preset("shapes2d-quick"), ["objective=BetaTC()", "control=PI(0.3)"])
    override(preset("shapes2d-quick"), ["objective=BetaTC()", "control=Constant(6)"])


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("steps=600", "did you mean training.steps?"),
        ("optimiser.lr=1", "did you mean optimiser.rate?"),
        ("optimizer.lr=1", "did you mean optimiser.rate?"),
        ("training.lr=1", "did you mean optimiser.rate?"),
        ("epochs=3", "did you mean training.steps?"),
        ("law=Auto(3)", "did you mean control?"),
        ("control=Auto", "write control=Auto(TARGET), e.g. control=Auto(18)"),
        ("control=pi", "write control=PI(TARGET)"),
        ("control=18", "write control.target=18"),
        ("beta=4", "write --set 'control=Constant(4)'"),
        ("device=cpu", "write --device cpu"),
        ("tensorboard=true", "write --tensorboard"),
        ("devices=2", "write --devices 2"),
        ("time_limit=3m", "write --time-limit 3m"),
    ],
)
def test_what_people_type_is_answered_with_what_they_mean(assignment, meant):
    with pytest.raises(UserError, match=re.escape(meant)):
        override(PRESETS["shapes2d-quick"], [assignment])


@pytest.mark.parametrize(
    "text", ["{[]}", "-" * 3_000 + "1", "0x" + "f" * 4_000, "[" * 400 + "]" * 400, "9" * 5_000]
)
def test_values_that_broke_the_parser_are_refused_in_one_line(text):
    with pytest.raises(UserError) as caught:
        override(PRESETS["shapes2d-quick"], [f"control.target={text}"])
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "setting", ["model.latents=1e102", "model.hidden=3e17", "model.dense=(0,)"]
)
def test_sizes_of_no_network_are_refused(setting):
    with pytest.raises(UserError, match=r"positive and at most 1,000,000"):
        override(PRESETS["shapes2d-quick"], [setting])
