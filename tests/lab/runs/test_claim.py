"""Claims: one owner, among machines whose locks do not see each other and whose clocks differ."""

import os
import time
from unittest import mock

import pytest
from racing_runs import run_rounds

from controlvae.errors import RunError
from controlvae.lab.config import override, preset
from controlvae.lab.runs import claim, claim_files
from controlvae.lab.runs.claim import Claim, RunInUseError
from controlvae.lab.runs.claim_files import (
    ClaimRecord,
    create_claim,
    may_take_over,
    newest_claim,
    read_claim,
)
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger, in_training

OTHER = "other-machine its-boot"


def claimed_elsewhere(folder, **settings):
    """Write the claim of another machine."""
    folder.mkdir(parents=True, exist_ok=True)
    number = newest_claim(folder)[0] + 1
    assert create_claim(folder, number, ClaimRecord(OTHER, 1, **settings))
    return number


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setenv(claim.LEASE_VARIABLE, "0.6")


def test_two_processes_train_every_run_once_and_lose_none(tmp_path):
    counts = run_rounds(tmp_path, rounds=12, kill_every=6, lease=1.0)
    assert counts["runs"] == 36
    assert counts["a"] + counts["b"] == 36
    assert (counts["twice"], counts["lost"], counts["overlap"]) == (0, 0, 0)


def test_only_one_of_two_creates_the_same_claim(tmp_path):
    first, second = ClaimRecord("a", 1), ClaimRecord("b", 2)
    assert create_claim(tmp_path, 1, first)
    assert not create_claim(tmp_path, 1, second)
    assert read_claim(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_link_whose_answer_was_lost_counts_as_ours(tmp_path):
    real_link = os.link

    def link_and_fail(source, target):
        real_link(source, target)
        raise FileExistsError

    with mock.patch("os.link", link_and_fail):
        assert create_claim(tmp_path, 1, ClaimRecord("a", 1))


def test_without_hard_links_a_claim_is_still_created_once(tmp_path):
    with mock.patch("os.link", side_effect=PermissionError):
        assert create_claim(tmp_path, 1, ClaimRecord("a", 1))
        assert not create_claim(tmp_path, 1, ClaimRecord("b", 2))
    assert read_claim(tmp_path) == ClaimRecord("a", 1)


def test_a_claim_that_is_renewed_is_refused(tmp_path):
    number = claimed_elsewhere(tmp_path / "claims", lease=5.0)
    path = claim_files.claim_file(tmp_path / "claims", number)

    def renew(_):
        path.write_bytes(claim_files.encode_claim(ClaimRecord(OTHER, 1, lease=5.0, renewals=1)))

    with (
        mock.patch("time.sleep", renew),
        pytest.raises(RunInUseError, match="other-machine"),
    ):
        Claim.acquire(tmp_path / "claims")
    assert newest_claim(tmp_path / "claims")[0] == number


@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_a_claim_expires_by_the_clock_of_the_observer_alone(tmp_path, short_lease, hours):
    folder = tmp_path / "claims"
    number = claimed_elsewhere(folder, lease=0.6)
    changed = time.time() + 3600 * hours  # what a server with another clock says
    os.utime(claim_files.claim_file(folder, number), (changed, changed))
    began = time.monotonic()
    taken = Claim.acquire(folder)
    assert time.monotonic() - began >= 0.6
    assert taken.number == number + 1
    taken.release()
    assert may_take_over(folder)


def test_a_crash_on_the_same_machine_is_taken_over_at_once(tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    crashed = ClaimRecord(claim_files.this_machine(), 1, lease=3600.0)
    assert create_claim(folder, 1, crashed)
    began = time.monotonic()
    Claim.acquire(folder, same_machine_ended=True).release()
    assert time.monotonic() - began < 60


def test_an_owner_that_slept_too_long_stops_before_it_writes(tmp_path, short_lease):
    run = RunFolder(tmp_path / "run")
    run.create(override(preset("shapes2d-quick"), []), "")
    log = RunLogger(run)
    log.record({"step": 1})
    with mock.patch.object(claim, "_uptime", return_value=1e9):
        log.record({"step": 2})  # nobody came: it claims the run again
        claimed_elsewhere(run.claims)
    with (
        mock.patch.object(claim, "_uptime", return_value=2e9),
        pytest.raises(RunError, match="taken over"),
    ):
        log.record({"step": 3})
    log.close()
    assert [record["step"] for record in map(dict, _steps(run))] == [1, 2]
    assert read_claim(run.claims).machine == OTHER  # releasing does not touch another's claim


def _steps(run):
    import json

    return [json.loads(line) for line in run.log_file.read_text().splitlines()]


def test_a_run_of_another_machine_counts_as_in_training_until_its_lease_ends(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(override(preset("shapes2d-quick"), []), "")
    RunLogger(run).close()
    assert not in_training(run)
    number = claimed_elsewhere(run.claims, lease=3600.0)
    assert in_training(run)
    before = time.time() - 7200
    os.utime(claim_files.claim_file(run.claims, number), (before, before))
    assert not in_training(run)


def test_a_wrong_lease_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv(claim.LEASE_VARIABLE, "soon")
    with pytest.raises(Exception, match=claim.LEASE_VARIABLE):
        Claim.acquire(tmp_path)
