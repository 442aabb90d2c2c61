"""Experiments survive their JSON, and overrides are typed."""

import itertools
import json
import math
import os
from pathlib import Path

import pytest

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.config import (
    PRESETS,
    Experiment,
    Grammar,
    TextVAEConfig,
    from_dict,
    iter_settings,
    override,
    preset,
    to_dict,
)
from controlvae.lab.io import write_text, writing
from controlvae.lab.runs.folder import RunFolder


@pytest.mark.parametrize("name", PRESETS)
def test_json_gives_back_the_same_experiment(name):
    text = json.dumps(to_dict(PRESETS[name]), allow_nan=False)
    assert from_dict(Experiment, json.loads(text)) == PRESETS[name]


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
def test_an_override_takes_the_type_of_its_field(assignment, read, value):
    assert read(override(preset("shapes2d-control-16"), [assignment])) == value


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("contrl.ki=1", "did you mean 'control'"),
        ("control.target.stpo=1", "did you mean 'stop'"),
        ("control.open_loop=true", "no field of PI 'open_loop'"),
        ("data.path=my.txt", "'data=KIND', KIND one of Images(path=...), TextFile(path=...)"),
        (
            "control.gamma=30",
            "of control have it: --set 'control=KIND', KIND one of Capacity(target=..., gamma=...)",
        ),
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
        ("control=Staircase(18, 1, inf, 5)", "step must be a finite number"),
        ("optimiser.rate=inf", "positive and finite"),
        (
            "data=TextFile(my.txt)",
            "(my.txt) cannot be read; put words in quotes, as in 'data=TextFile(",
        ),
        ("control=Auto(18", "control: Auto(18 cannot be read; close every parenthesis"),
    ],
)
def test_a_wrong_override_is_refused_with_its_path(assignment, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
        override(preset("shapes2d-control-16"), [assignment])


@pytest.mark.parametrize("name", PRESETS)
def test_the_settings_of_a_preset_as_they_are_listed_make_it(name):
    listed = dict(iter_settings(preset(name)))
    parts = {path for path in listed if any(other.startswith(f"{path}.") for other in listed)}
    given = [
        f"{path}={value}" for path, value in listed.items() if path not in parts and "." in path
    ]
    assert override(preset(name), given) == preset(name)


def test_overrides_hold_together_in_any_order():
    whole = [
        "data=Grammar()",
        "model=TextVAE(8)",
        "model.width=64",
        "objective.likelihood=tokens",
        "control=PI(3)",
    ]
    found = {
        override(preset("shapes2d-quick"), list(order)) for order in itertools.permutations(whole)
    }
    assert len(found) == 1
    text = found.pop()
    assert (text.data, text.model, text.control) == (
        Grammar(),
        TextVAEConfig(8, width=64),
        cv.PI(3.0),
    )
    with pytest.raises(UserError, match=r"^Experiment: text data goes with"):
        override(preset("shapes2d-quick"), whole[:2])


def test_a_later_format_is_refused_with_a_word(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(preset("shapes2d-quick"), "controlvae train shapes2d-quick")
    assert folder.experiment() == preset("shapes2d-quick")
    content = json.loads(folder.experiment_file.read_text())
    folder.experiment_file.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(UserError, match="later controlvae"):
        folder.experiment()


def test_an_older_run_opens_with_defaults_for_what_it_lacks(tmp_path):
    plain = to_dict(preset("shapes2d-quick"))
    del plain["optimiser"]["beta2"], plain["about"]
    assert from_dict(Experiment, plain).optimiser.beta2 == 0.999


def test_a_torn_last_line_is_not_a_record(tmp_path):
    folder = RunFolder(tmp_path)
    line = '{"step": %d, "kl": 1.0, "beta": 1.0, "reconstruction": 2.0}'
    folder.log_file.write_text(f"{line % 1}\n{line % 2}\n{line[:9]}")
    assert [record["step"] for record in folder.records()] == [1, 2]
    folder.log_file.write_text(f"{line % 1}\nnonsense\n{line % 2}\n")
    with pytest.raises(UserError, match="line 2 is not a record"):
        folder.records()


def test_a_file_is_whole_or_as_it_was(tmp_path):
    folder = RunFolder(tmp_path / "run")
    figure = tmp_path / "run" / "figure.png"

    def fail():
        with writing(figure) as beside:
            beside.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    folder.require_empty()
    with writing(figure) as beside:
        beside.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [(file.name, file.read_text()) for file in folder.path.iterdir()] == [
        ("figure.png", "old")
    ]
    with pytest.raises(UserError, match=r"^cannot write \.: [^\n]*$"), writing(Path()) as beside:
        beside.write_text("a folder is no file")


def test_an_estimate_with_an_offset_is_no_set_point():
    with pytest.raises(UserError, match=r"open-loop weight"):
        override(preset("shapes2d-quick"), ["objective=BetaTC()", "control=PI(0.3)"])
    override(preset("shapes2d-quick"), ["objective=BetaTC()", "control=Constant(6)"])


def test_what_a_killed_writer_left_goes_with_the_next_writing_and_a_living_ones_stays(tmp_path):
    killed, living = tmp_path / ".part-1-table.md", tmp_path / ".part-2-table.md"
    for path in (killed, living):
        path.write_text("| half")
    os.utime(killed, (0, 0))
    write_text(tmp_path / "table.md", "| whole |")
    assert sorted(path.name for path in tmp_path.iterdir()) == [living.name, "table.md"]
