"""Tests of captured updates: when a graph is captured, and that replaying it changes no number."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch

import controlvae as cv
from controlvae import _cuda_graph
from controlvae._cuda_graph import CapturedUpdate, GraphKey, GraphReplay, is_capturable

EVERY, LAST = GraphKey(False, 4, True), GraphKey(True, 4, True)


@dataclass
class FakeGraph:
    """Stand-in for a captured graph: the same update on the same tensors."""

    update: object
    state: torch.Tensor
    measured: torch.Tensor
    weight: torch.Tensor
    key: GraphKey

    def replay(self):
        self.weight.copy_(self.update(self.state, self.measured, self.key))


@pytest.fixture
def captured_keys(monkeypatch):
    """Replace the capture by a fake and return the list of captured keys."""
    keys = []

    def capture_update(update, state, measured, key):
        keys.append(key)
        buffers = torch.empty_like(measured), torch.empty_like(measured)
        return CapturedUpdate(FakeGraph(update, state, *buffers, key), state, *buffers)

    monkeypatch.setattr(_cuda_graph, "capture_update", capture_update)
    return keys


def update_in_place(state, measured, key):
    """Update that depends on all its arguments."""
    state.mul_(0.5).add_(measured * (2 if key.last else 1) + key.accumulate)
    return state + 1


def check_update(replay, state, expected, measured, key=EVERY):
    """Compare an update through `replay` with the plain one."""
    weight = replay.advance(update_in_place, state, torch.tensor(measured), key).clone()
    assert weight.equal(update_in_place(expected, torch.tensor(measured), key))
    assert state.equal(expected)


def test_replayed_updates_equal_eager_updates(captured_keys):
    replay, state, expected = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(40):
        check_update(replay, state, expected, float(step), LAST if step % 4 == 3 else EVERY)
    assert captured_keys == [EVERY, LAST]


def test_new_options_are_captured_separately(captured_keys):
    replay, state, expected = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(30):
        key = GraphKey(False, 4 if step < 20 else 8, True)
        check_update(replay, state, expected, float(step), key)
    assert [key.accumulate for key in captured_keys] == [4, 8]


def test_moved_state_is_captured_a_limited_number_of_times(captured_keys):
    replay, expected = GraphReplay(), torch.tensor(3.0)
    for step in range(60):
        state = expected.clone()
        check_update(replay, state, expected, float(step))
    assert 1 < len(captured_keys) < 20


def test_failed_capture_falls_back_to_eager_updates(monkeypatch):
    attempts = []
    monkeypatch.setattr(_cuda_graph, "capture_update", lambda *args: attempts.append(args))
    replay, state, expected = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(40):
        check_update(replay, state, expected, float(step))
    assert len(attempts) == 1


def test_short_loop_captures_nothing(captured_keys):
    replay, state, expected = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(5):
        check_update(replay, state, expected, float(step))
    assert captured_keys == []


@dataclass(frozen=True)
class CustomLaw(cv.PI):
    """User-supplied law, which may read a number from the device."""


@dataclass(frozen=True)
class CustomSchedule(cv.Linear):
    """User-supplied schedule."""


def test_only_laws_of_this_package_are_captured():
    ramp = cv.Linear(1.0, 18.0, steps=5)
    assert is_capturable([cv.PI(18.0), cv.Auto(18.0), cv.PI(ramp), cv.Constant(1.0)])
    assert not is_capturable([cv.PI(18.0), CustomLaw(18.0)])
    assert not is_capturable([cv.PI(CustomSchedule(1.0, 18.0, steps=5))])


@pytest.mark.parametrize("laws", [[cv.PI(18.0)] * 2, [cv.PI(18.0), cv.Constant(1.0)]], ids=str)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda control: pickle.loads(pickle.dumps(control))]
)
def test_copy_has_its_own_state(duplicate, laws):
    control = cv.Controller(laws)
    control.step(torch.tensor([20.0, 10.0]))
    control._replay._captured[EVERY] = "a graph of the original"  # as on a GPU after some steps
    other = duplicate(control)
    assert other._replay._captured == {}
    before, measured = control.beta, torch.tensor([30.0, 12.0])
    assert other.step(measured).equal(duplicate(control).step(measured))
    assert control.beta.equal(before)
    assert not other.beta.equal(before)
