"""Digests of settings equal those of version 0.1.0, so that its checkpoints resume."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import controlvae as cv
from controlvae.lab.config import PRESETS, RenamedWarning, Switchboard, override
from controlvae.lab.config.digest import config_digest

DIGESTS = json.loads(Path(__file__).with_name("digests_0_1_0.json").read_text())

# Preset, overrides under the names of version 0.1.0, and the digest that version computed.
OVERRIDDEN = [
    (
        "shapes2d-quick",
        ["objective.prices=(1,Points((10,20),(3,1)))"],
        "e13e79fb2c975c12137bb1fdbeb2724da15e688ee765e2e08e572e9029a9343d",
    ),
    (
        "images",
        ["data.path=x.npy", "data.part=test", "data.images=5"],
        "5c71ca89a6d809c1fd83ab07d61659803cad1c8642ab5ba4b077140bbb1cacbf",
    ),
    (
        "text-quick",
        ['data=TextFile("a.txt",part="test",words=50,lower=true,longest=9)'],
        "a06606644c049a02116d7a6781bd9e27732b09f38fb3c36d4ea92c8194c4f3e9",
    ),
    (
        "text-quick",
        ['data=TextFile("a.txt",pieces=50)'],
        "122a324b784097da96fa5aeca9c0250bb159149dc67018de8dd630ddc0f3bde7",
    ),
    (
        "text-quick",
        ["data.part=test"],
        "e813a18cce1029daa10bacc9ff824c83129c7ee6732bf2edfda50cd872a80f54",
    ),
    (
        "dialog-quick",
        ['data=DialogFile("a.jsonl",part="test",words=99,longest=8,window=3)'],
        "5d4fc8b378cbcb270ffa07747360cca797f728b842e0ad02afb35854a1f58504",
    ),
    (
        "dialog-quick",
        ["data.part=test"],
        "6d37cef79bb4c13cca140900512085fe2af0dd18007273c1e27330db8a5acf63",
    ),
    (
        "dialog-cost",
        ["data.words=none", "data.longest=12"],
        "b9a223f36221652d86c3c8ee7c753c468e911d89656cdfdfc5d86249f449f722",
    ),
]


def with_former_defaults(experiment):
    """Return a preset as version 0.1.0 wrote it.

    The smallest weight of `Auto` was 1e-6, every seed had its own sequence of widths, and dialog
    acts were not joined.
    """
    experiment = replace(experiment, training=replace(experiment.training, widths="own"))
    if isinstance(experiment.data, Switchboard):
        experiment = replace(experiment, data=replace(experiment.data, join_acts=False))
    if not isinstance(experiment.control, cv.Auto):
        return experiment
    return replace(experiment, control=replace(experiment.control, beta_min=1e-6))


@pytest.mark.parametrize("name", DIGESTS)
def test_digest_of_preset_is_unchanged(name):
    assert config_digest(with_former_defaults(PRESETS[name])) == DIGESTS[name]


def test_changed_default_changes_the_digest():
    preset = PRESETS["text-quick"]
    assert config_digest(preset) != config_digest(with_former_defaults(preset))


@pytest.mark.parametrize(("name", "assignments", "digest"), OVERRIDDEN)
def test_digest_of_renamed_settings_is_unchanged(name, assignments, digest):
    with pytest.warns(RenamedWarning):
        experiment = override(PRESETS[name], assignments)
    assert config_digest(with_former_defaults(experiment)) == digest


def test_digest_ignores_length_and_description():
    first = PRESETS["shapes2d-quick"]
    longer = override(first, ["training.steps=9999", "about=longer"])
    assert config_digest(longer) == config_digest(first)
    assert config_digest(override(first, ["training.seed=2"])) != config_digest(first)
