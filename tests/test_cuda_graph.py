"""A controller's update, recorded and replayed: when it is, and that nothing changes but the time it takes."""

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
class Again:
    """A stand-in for a captured graph: the same update, on the same memory, into the same memory."""

    update: object
    state: torch.Tensor
    measured: torch.Tensor
    weight: torch.Tensor
    how: GraphKey

    def replay(self):
        self.weight.copy_(self.update(self.state, self.measured, self.how))


@pytest.fixture
def recordings(monkeypatch):
    """How each recording was made, in order; nothing of it runs before it is replayed."""
    made = []

    def record(update, state, measured, how):
        made.append(how)
        own = torch.empty_like(measured), torch.empty_like(measured)
        return CapturedUpdate(Again(update, state, *own, how), state, *own)

    monkeypatch.setattr(_cuda_graph, "capture_update", record)
    return made


def moved(state, measured, how):
    """An update that depends on all it is given, and writes its state in place."""
    state.mul_(0.5).add_(measured * (2 if how.last else 1) + how.accumulate)
    return state + 1


def both(one, state, plain, measured, how=EVERY):
    """The same update replayed, or not, and made plainly."""
    got = one.advance(moved, state, torch.tensor(measured), how).clone()
    assert got.equal(moved(plain, torch.tensor(measured), how))
    assert state.equal(plain)


def test_replayed_updates_are_those_made_one_operation_at_a_time(recordings):
    one, state, plain = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(40):
        both(one, state, plain, float(step), LAST if step % 4 == 3 else EVERY)
    assert recordings == [EVERY, LAST]


def test_an_update_that_is_done_otherwise_from_now_on_is_captured_anew(recordings):
    one, state, plain = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(30):
        both(one, state, plain, float(step), GraphKey(False, 4 if step < 20 else 8, True))
    assert [how.accumulate for how in recordings] == [4, 8]


def test_a_state_that_lies_elsewhere_is_captured_anew_and_not_without_end(recordings):
    one, plain = GraphReplay(), torch.tensor(3.0)
    for step in range(60):
        state = plain.clone()
        both(one, state, plain, float(step))
    assert 1 < len(recordings) < 20


def test_where_there_is_no_room_to_record_updates_are_made_as_they_are(monkeypatch):
    asked = []
    monkeypatch.setattr(_cuda_graph, "capture_update", lambda *how: asked.append(how))
    one, state, plain = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(40):
        both(one, state, plain, float(step))
    assert len(asked) == 1


def test_a_short_loop_records_nothing(recordings):
    one, state, plain = GraphReplay(), torch.tensor(3.0), torch.tensor(3.0)
    for step in range(5):
        both(one, state, plain, float(step))
    assert recordings == []


@dataclass(frozen=True)
class Own(cv.PI):
    """A law of a user's own, which may ask the device for a number."""


@dataclass(frozen=True)
class Ramp(cv.Linear):
    """Likewise a ramp."""


def test_laws_of_this_package_are_captured_and_no_others():
    assert is_capturable(
        [cv.PI(18.0), cv.Auto(18.0), cv.PI(cv.Linear(1.0, 18.0, steps=5)), cv.Constant(1.0)]
    )
    assert not is_capturable([cv.PI(18.0), Own(18.0)])
    assert not is_capturable([cv.PI(Ramp(1.0, 18.0, steps=5))])


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda control: pickle.loads(pickle.dumps(control))]
)
def test_a_copy_moves_a_state_of_its_own(copied):
    control = cv.Controller(cv.PI(18.0), models=2)
    control.step(torch.tensor([20.0, 10.0]))
    control._replay._captured[EVERY] = "of the first one's state"  # as on a GPU after some steps
    other = copied(control)
    assert other._replay._captured == {}
    before = control.beta
    assert other.step(torch.tensor([30.0, 12.0])).equal(
        copied(control).step(torch.tensor([30.0, 12.0]))
    )
    assert control.beta.equal(before)
    assert not other.beta.equal(before)
