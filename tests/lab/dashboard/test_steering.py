"""Steering: what is known of the reach, which targets are refused, and what became of requests."""

import json
import shutil

import pytest
import torch
from dashboards import SMALL, ask, events, get, post_target, served, train_two

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.dashboard.run_list import RunList
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.select import make_engine
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import request_target
from controlvae.lab.runs.steering import Reach, check_reach, describe_steering, known_reach
from controlvae.lab.training.loop import Run, train_runs

STUCK = {"event": "target out of reach", "step": 900, "beta": 1.0, "bound": 1.0}
LOW = STUCK | {"target": 10.0, "kl": 12.8}
HIGH = STUCK | {"target": 60.0, "kl": 30.0}
AGAIN = {"event": "target in reach again", "step": 950}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_two(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("happened", "measured", "reach"),
    [
        ([], 18.0, (None, None)),
        ([LOW], 12.9, (12.8, None)),
        ([HIGH], 29.0, (None, 30.0)),
        ([LOW, HIGH], 18.0, (12.8, 30.0)),
        ([LOW], 11.0, (11.0, None)),  # it is lower by now
        ([HIGH], 33.0, (None, 33.0)),
        ([LOW, AGAIN], 12.9, (None, None)),
        ([LOW, HIGH, AGAIN], 18.0, (12.8, None)),
        ([LOW | {"kl": float("nan")}], 18.0, (None, None)),
    ],
)
def test_known_reach(happened, measured, reach):
    assert known_reach(happened, "kl", {"kl": measured}) == reach


@pytest.mark.parametrize(
    ("target", "reach", "seen", "outcome"),
    [
        (20.0, Reach(), [18.0], "accepted"),
        (150.0, Reach(), [18.0], "accepted"),
        (500.0, Reach(), [18.0], "up to 18 nats"),
        (500.0, Reach(), [], "accepted"),  # nothing is known
        (0.01, Reach(), [18.0], "accepted"),
        (12.0, Reach(12.8, 30.0), [18.0], "12.8 nats and more"),
        (31.0, Reach(12.8, 30.0), [18.0], "up to 30 nats"),
        (20.0, Reach(12.8, 30.0), [18.0], "accepted"),
        (301.0, Reach(12.8, 30.0), [18.0], "12.8 to 30 nats"),
        (1.0, Reach(12.8, None), [18.0], "12.8 nats and more"),
        (-500.0, Reach(None, None), [-3.0], "accepted"),  # a reconstruction may be negative
        (500.0, Reach(None, -3.0), [-3.0], "up to -3 nats"),
    ],
)
def test_absurd_targets_are_refused_with_the_reachable_range(target, reach, seen, outcome):
    is_absurd = target in (500.0, 301.0, 1.0) and outcome != "accepted"
    if is_absurd:
        with pytest.raises(ValueError, match=outcome):
            check_reach(target, reach, seen)
        return
    note = check_reach(target, reach, seen)
    assert note is None if outcome == "accepted" else outcome in note


def test_outcome_of_a_request():
    moved = {"event": "target moved", "step": 600, "target": 20.0}
    at = {"step": 700, "kl": 15.0}
    assert describe_steering([], None, "kl", at) is None
    asked = describe_steering([], '{"target": 20}', "kl", at)
    assert (asked.asked, asked.applied, asked.outcome) == (20.0, None, "asked")
    assert describe_steering([], "{", "kl", at).asked is None
    approaching = describe_steering([moved], None, "kl", at)
    assert approaching.applied == {"target": 20.0, "step": 600}
    assert approaching.outcome == "approaching"
    near = {"step": 700, "kl": 19.5}
    assert describe_steering([moved], None, "kl", near).outcome == "reached"
    before = {"step": 600, "kl": 19.5}  # measured before the move
    assert describe_steering([moved], None, "kl", before).outcome == "approaching"
    assert describe_steering([moved], None, "kl", at, was_reached=True).outcome == "reached"
    assert describe_steering([moved, HIGH], None, "kl", near).outcome == "out of reach"
    assert describe_steering([moved, HIGH, AGAIN], None, "kl", near).outcome == "reached"
    # An earlier target was out of reach, and not this one.
    assert describe_steering([LOW, moved], None, "kl", at).outcome == "approaching"
    again = describe_steering([moved], '{"target": 9}', "kl", near)
    assert (again.asked, again.applied["target"], again.outcome) == (9.0, 20.0, "asked")


def test_page_follows_a_request_through_training(tmp_path):
    experiment = override(preset("shapes2d-quick"), [*SMALL, "training.steps=1500"])
    folder = RunFolder(tmp_path / "run")
    folder.create(experiment, "")
    engine = make_engine([experiment], load_dataset(experiment.data), torch.device("cpu"))
    run_list, seen = RunList(tmp_path), []
    for progress in train_runs([Run.open(folder)], engine):
        if progress.step == 500:
            assert request_target(folder, 12) is None
        if progress.step >= 495:
            (summary,) = run_list.refresh()
            seen.append((summary["steering"] or {"outcome": None}) | summary)
    outcomes = list(dict.fromkeys(each["outcome"] for each in seen))
    assert outcomes == [None, "asked", "approaching", "reached"]
    assert seen[0]["law"] == "PI(target=18.0)"
    moved = next(each for each in seen if each["outcome"] == "approaching")
    assert (moved["target"], moved["law"]) == (12.0, "PI(target=12.0)")
    assert moved["applied"] == {"target": 12.0, "step": 500}
    assert abs(seen[-1]["latest"]["kl"] - 12) < 2


def test_requests_to_the_server(trained, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root)
    stopped = root / "stopped"
    with (stopped / "events.jsonl").open("a") as file:
        file.write(json.dumps(LOW) + "\n")
    # What it has now is no limit: the event says that the weight was at its bound.
    last = RunFolder(stopped).last_record()
    lines = (stopped / "log.jsonl").read_text().splitlines(keepends=True)
    (stopped / "log.jsonl").write_text("".join(lines) + json.dumps(last | {"kl": 13.0}) + "\n")
    with served(root) as (address, _):

        def move(target):
            code, _, text = ask(
                post_target(address, "stopped", json.dumps({"target": target}).encode())
            )
            return code, json.loads(text)

        for target in (500, 1, -3, 0, 1e40, "9", None, True, [9]):
            code, answer = move(target)
            assert code == 400, target
            assert "\n" not in answer["error"]
        assert "is known to reach: 12.8 nats and more" in move(1)[1]["error"]
        assert not (stopped / "request.json").exists()

        assert move(20) == (200, {"target": 20, "state": "asked", "note": None})
        code, answer = move(12)
        assert (code, answer["state"]) == (200, "asked")
        assert "12.8" in answer["note"]
        with get(address, "/events", run="stopped") as stream:
            received = events(stream)
            runs = next(received)[1]["runs"]
            steering = next(run for run in runs if run["run"] == "stopped")["steering"]
            assert steering == {
                "asked": 12.0,
                "applied": None,
                "outcome": "asked",
                "reach": [12.8, None],
            }


def test_steer_command_refuses_absurd_targets_too(trained):
    with pytest.raises(UserError, match="known to reach"):
        request_target(RunFolder(trained / "some" / "stopped"), 5_000)


def test_steering_by_hand_prints_a_note_outside_the_known_reach(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained / "some" / "stopped", run)
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(LOW) + "\n")
    lines = (run / "log.jsonl").read_text().splitlines(keepends=True)
    last = json.loads(lines[-1]) | {"kl": 13.0}
    (run / "log.jsonl").write_text("".join(lines) + json.dumps(last) + "\n")
    lab.set_target(run, 12)
    assert "below the reach known so far" in capsys.readouterr().err
    lab.set_target(run, 14)
    assert not capsys.readouterr().err
