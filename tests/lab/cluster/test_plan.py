"""Plans: every run in one pack, packs that fit, and times that follow from the measured speeds."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlvae.lab.cluster.base import Slots
from controlvae.lab.cluster.plan import PlannedRun, make_plan
from controlvae.lab.cluster.speed import Speed, SpeedLine, find_speed, keep_speed
from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder

H200 = Speed((SpeedLine(1, 4420.0, 0.47), SpeedLine(25, 681.0, 1.38)), "NVIDIA H200", "a record")
CPU = Speed((SpeedLine(1, 100.0, 0.3),), "a processor", "measured")


def runs(tmp_path, count, name="shapes2d-control-16", *sets):
    experiment = override(preset(name), list(sets))
    return [
        PlannedRun(
            replace(experiment, training=replace(experiment.training, seed=seed)),
            RunFolder(tmp_path / f"{name}{len(sets)}-{seed}"),
        )
        for seed in range(count)
    ]


def plan_of(members, speed, slots, **more):
    chosen = {"gpus": 1, "per_job": None, "measure": lambda experiment: speed, **more}
    return make_plan(members, slots=Slots(slots, "slots"), **chosen)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 60),
    slots=st.integers(1, 30),
    gpus=st.integers(0, 3),
    marginal=st.floats(0.01, 1.0),
    gib=st.floats(0.1, 5.0),
)
def test_every_run_is_in_one_pack_that_fits_and_the_end_is_near_the_best(
    tmp_path_factory, count, slots, gpus, marginal, gib
):
    members = runs(tmp_path_factory.mktemp("runs"), count)
    lines = tuple(SpeedLine(k, 1 / (1 + marginal * k), gib * k) for k in (1, 5, 25))
    speed = Speed(lines, "card", "made up", memory_limit=20.0)
    plan = plan_of(members, speed, slots, gpus=gpus)
    packed = [run.folder for packs in plan.jobs for pack in packs for run in pack]
    assert sorted(map(str, packed)) == sorted(str(run.folder) for run in members)
    assert all(len(packs) <= max(1, gpus) for packs in plan.jobs)
    share = 1.0 if gpus else 1 / slots
    largest = max(len(pack) for packs in plan.jobs for pack in packs)
    assert largest == 1 or largest * gib < 0.9 * 20 * share + 1e-9
    cards = slots * max(1, gpus)
    ends = []
    for size in range(1, min(25, count) + 1):  # every size, by the definition
        if size == 1 or size * gib < 0.9 * 20 * share:
            waves = math.ceil(math.ceil(count / size) / cards)
            ends.append(waves * members[0].steps_left * (1 + marginal * size))
    assert plan.seconds <= 1.1 * min(ends) * (1 + 1e-9)


def test_time_on_the_cards_follows_from_the_two_measured_speeds(tmp_path):
    members = runs(tmp_path, 25)
    alone = plan_of(members, H200, 1)
    assert [len(pack) for packs in alone.jobs for pack in packs] == [25]
    assert alone.seconds == pytest.approx(1_500_000 / 681)
    wide = plan_of(members, H200, 100)
    assert wide.seconds == pytest.approx(1_500_000 / 4420, rel=0.11)


def test_models_side_by_side_gain_nothing_on_a_cpu(tmp_path):
    plan = plan_of(runs(tmp_path, 6), CPU, 2, gpus=0)
    assert len(plan.jobs) == 6
    assert plan.seconds == pytest.approx(3 * 1_500_000 / 100)


def test_runs_of_other_settings_or_other_steps_do_not_share_a_pack(tmp_path):
    members = runs(tmp_path, 4) + runs(tmp_path, 4, "shapes2d-control-16", "training.batch=32")
    members += [replace(run, step=1000) for run in runs(tmp_path / "later", 2)]
    plan = plan_of(members, H200, 1)
    for packs in plan.jobs:
        for pack in packs:
            kinds = {(run.experiment.training.batch, run.step) for run in pack}
            assert len(kinds) == 1
    assert len(plan.jobs) == 3


def test_a_plan_names_runs_jobs_speed_and_the_starts_that_a_time_limit_needs(tmp_path):
    text = "\n".join(plan_of(runs(tmp_path, 25), H200, 1, limit=600.0).describe())
    for words in ("25 runs in 1 job", "NVIDIA H200, a record", "37m", "about 4 times"):
        assert words in text
    assert "unknown" in plan_of(runs(tmp_path, 2), None, 4).describe()[-1]


def test_published_measurements_are_found_for_their_presets_and_their_device_alone(
    own_folders, tmp_path
):
    found = find_speed(preset("shapes2d-control-18"), "h200")
    assert found is not None
    assert found.seconds_per_step(25) == pytest.approx(1 / 681)
    assert find_speed(preset("shapes2d-control-18"), "a100") is None
    assert find_speed(preset("shapes2d-control-18"), "") is None
    assert find_speed(preset("shapes2d-quick"), "h200") is None
    keep_speed(preset("shapes2d-quick"), "h200", CPU)
    kept = find_speed(override(preset("shapes2d-quick"), ["control.target=3"]), "h200")
    assert kept == CPU
