"""Settings survive JSON, also JSON of older versions."""

import json
import warnings

import pytest

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.config import (
    PRESETS,
    ConvVAEConfig,
    Elbo,
    Experiment,
    Images,
    from_dict,
    non_default_fields,
    to_dict,
)
from controlvae.lab.config.comparison import changed_fields, method_differences


@pytest.mark.parametrize("name", PRESETS)
def test_json_returns_the_same_experiment(name):
    text = json.dumps(to_dict(PRESETS[name]), allow_nan=False)
    assert from_dict(Experiment, json.loads(text)) == PRESETS[name]


def test_missing_fields_take_their_defaults():
    data = to_dict(PRESETS["shapes2d-quick"])
    del data["optimiser"]["beta2"], data["about"]
    assert from_dict(Experiment, data).optimiser.beta2 == 0.999


def test_unknown_field_raises():
    data = to_dict(PRESETS["shapes2d-quick"])
    data["training"]["step"] = 3
    with pytest.raises(UserError, match=r"'step'.*'steps'"):
        from_dict(Experiment, data)


def test_model_settings_keep_their_type_name():
    assert to_dict(ConvVAEConfig())["type"] == "ConvVAE"


def test_former_names_are_read_silently():
    data = {"type": "Elbo", "prices": [1.0, {"type": "Linear", "start": 1, "stop": 2, "steps": 9}]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elbo = from_dict(Elbo, data)
        images = from_dict(Images, {"type": "Images", "path": "x", "part": "test"})
    assert elbo == Elbo(kl_weights=(1.0, cv.Linear(1.0, 2.0, 9)))
    assert images == Images("x", split="test")


def test_non_default_fields_under_present_and_former_names():
    elbo = Elbo(kl_weights=(1.0, 2.0))
    assert non_default_fields(elbo) == {"type": "Elbo", "kl_weights": [1.0, 2.0]}
    assert non_default_fields(elbo, as_first_written=True) == {"type": "Elbo", "prices": [1.0, 2.0]}


def test_seeds_of_one_method_do_not_differ():
    first = PRESETS["shapes2d-quick"]
    data = to_dict(first)
    data["training"] |= {"seed": 7, "log_every": 10}
    second = from_dict(Experiment, data)
    assert list(changed_fields(first, second)) == ["training.seed", "training.log_every"]
    assert method_differences(first, second) == []
    assert "control" in method_differences(first, PRESETS["shapes2d-quick-vae"])
