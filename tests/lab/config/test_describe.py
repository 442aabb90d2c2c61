"""Every setting has a description."""

from dataclasses import fields

import pytest

from controlvae.lab.config import PRESETS, Experiment, Training, describe_settings, iter_settings
from controlvae.lab.config.data import DataSettings
from controlvae.lab.config.describe import field_descriptions
from controlvae.lab.config.models import ModelSettings
from controlvae.lab.config.parsing import settings_classes
from controlvae.lab.objectives import ObjectiveSettings
from controlvae.lab.optimiser import Adam
from controlvae.laws import Law

CLASSES = [
    Experiment,
    Training,
    Adam,
    *settings_classes(DataSettings),
    *settings_classes(ModelSettings),
    *settings_classes(ObjectiveSettings),
    *settings_classes(Law),
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_has_one_plain_sentence(cls):
    descriptions = field_descriptions(cls)
    for field in fields(cls):
        text = descriptions[field.name]
        assert text[0].isupper() or text[0] == '"'  # a value, such as "equal"
        assert text.endswith(".")
        assert "\n" not in text


@pytest.mark.parametrize("name", ["shapes2d-quick", "text-quick", "dialog-quick", "images"])
def test_descriptions_follow_the_listed_settings(name):
    described = list(describe_settings(PRESETS[name]))
    assert [(one.path, one.value) for one in described] == list(iter_settings(PRESETS[name]))
    assert all(one.help for one in described if one.path not in ("name", "about", "paper"))
