"""Search spaces: forms of ranges and choices, and errors about them."""

import pytest

from controlvae.errors import UserError
from controlvae.lab.cluster.search_space import (
    Choice,
    Range,
    describe_values,
    make_assignments,
    parse_space,
)
from controlvae.lab.config import override, preset

BASE = preset("shapes2d-quick")


def test_texts_and_python_values_mean_the_same():
    texts = [
        "control.target=4:20",
        "optimiser.rate=1e-4:1e-2:log",
        "training.batch=32,64",
        "model.latents=4:12:4",
    ]
    values = {
        "control.target": (4, 20),
        "optimiser.rate": (1e-4, 1e-2, "log"),
        "training.batch": [32, 64],
        "model.latents": (4, 12, 4),
    }
    space = parse_space(BASE, texts)
    assert space == parse_space(BASE, values)
    assert space == {
        "control.target": Range(4.0, 20.0),
        "optimiser.rate": Range(1e-4, 1e-2, log=True),
        "training.batch": Choice(("32", "64")),
        "model.latents": Range(4, 12, step=4),
    }
    assert [space[path].is_whole for path in ("control.target", "model.latents")] == [False, True]


def test_the_text_of_a_space_gives_the_same_space():
    texts = [
        "control.target=4:20:0.5",
        "optimiser.rate=1e-4:1e-2:log",
        "control=PI(18, ki=1e-3),Auto(9)",
    ]
    space = parse_space(BASE, texts)
    assert space["control"].values == ("PI(18, ki=1e-3)", "Auto(9)")
    again = parse_space(BASE, [f"{path}={dimension}" for path, dimension in space.items()])
    assert again == space


def test_values_of_a_trial_are_settings_without_loss():
    settings = {"control.target": 0.1 + 0.2, "training.batch": 16, "control": "PI(18, ki=1e-3)"}
    assignments = make_assignments(settings)
    experiment = override(BASE, assignments[1:] + assignments[:1])
    assert experiment.control.target == 0.1 + 0.2
    assert (experiment.control.ki, experiment.training.batch) == (1e-3, 16)
    assert describe_values(settings) == "target=0.3, batch=16, control=PI(18, ki=1e-3)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("control.targt=4:20", "did you mean 'target'"),
        ("optimizer.rate=1:2", "did you mean optimiser.rate"),
        ("control.target=20:4", "below the upper end"),
        ("control.target=4:4", "below the upper end"),
        ("control.target=4", "a single value"),
        ("control.target=4,4", "a single value"),
        ("control.target=4:x", "a range is LOW:HIGH"),
        ("control.target=4:8:1:2", "a range is LOW:HIGH"),
        ("control.target=4:8:9", "within the range, got 9"),
        ("control.target=-4:8", "must be positive"),
        ("control.kp=0:1:log", "above zero"),
        ("training.batch=16:32:0.5", "whole numbers"),
        ("training.batch=1.5:4", "whole number"),
        ("training.precision=1:2", "'fp32'"),
        ("control.target", "part.field="),
    ],
)
def test_wrong_ranges_are_explained(text, message):
    with pytest.raises(UserError, match=None) as caught:
        parse_space(BASE, [text])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_is_varied_once_and_at_least_one_is():
    with pytest.raises(UserError, match="twice"):
        parse_space(BASE, ["control.target=4:20", "control.target=5,6"])
    with pytest.raises(UserError, match="needs a setting"):
        parse_space(BASE, [])
    with pytest.raises(UserError, match="a list of values"):
        parse_space(BASE, {"control.target": {4, 20}})
