"""Tests of the drop-in for the adaptive KL controller of RLHF programs."""

import math
import pickle

import numpy as np
import pytest

import controlvae as cv
from controlvae.errors import UserError
from controlvae.integrations.rlhf import AdaptiveKLController


def measured_kls(count=50):
    return np.random.default_rng(0).uniform(0, 20, count)


def test_adaptive_law_computes_the_formula_of_ziegler_et_al():
    control, value = AdaptiveKLController(0.2, 6.0, 10_000, law="adaptive"), 0.2
    for number, kl in enumerate(measured_kls()):
        control.update(kl, n_steps=64 + number)
        value *= 1 + np.clip(kl / 6.0 - 1, -0.2, 0.2) * (64 + number) / 10_000
        assert control.value == value
    assert control.target == 6.0
    assert control.horizon == 10_000


def test_default_law_is_auto_from_the_initial_coefficient():
    control, law = (
        AdaptiveKLController(0.2, 6.0, 10_000),
        cv.Controller(cv.Auto(6.0, beta_init=0.2)),
    )
    assert control.value == 0.2
    for kl in measured_kls():
        control.update(kl, n_steps=256)
        assert control.value == law.step(float(kl))


@pytest.mark.parametrize("law", [None, "adaptive", cv.PI(6.0)])
def test_a_restored_controller_continues_where_it_was(law):
    first, second = (AdaptiveKLController(0.2, 6.0, 1_000, law=law) for _ in range(2))
    for kl in measured_kls():
        first.update(kl, 10)
    second.load_state_dict(first.state_dict())
    third = pickle.loads(pickle.dumps(first))  # to another process, as Ray does
    for control in (first, second, third):
        control.update(9.0, 10)
    assert first.value == second.value == third.value


@pytest.mark.parametrize("law", [None, "adaptive"])
def test_a_kl_of_nan_leaves_the_coefficient(law):
    control = AdaptiveKLController(0.2, 6.0, 1_000, law=law)
    control.update(9.0, 10)
    before = control.value
    control.update(math.nan, 10)
    assert control.value == before


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0.0, 6.0, 10), "init_kl_coef"), ((0.2, 0.0, 10), "target_kl"), ((0.2, 6.0, 0), "horizon")],
)
def test_an_unusable_argument_is_named(arguments, name):
    with pytest.raises(UserError, match=name):
        AdaptiveKLController(*arguments)


def test_a_state_of_another_law_is_refused():
    saved = AdaptiveKLController(0.2, 6.0, 10).state_dict()
    with pytest.raises(UserError, match="adaptive"):
        AdaptiveKLController(0.2, 6.0, 10, law="adaptive").load_state_dict(saved)


def test_argument_names_of_every_program_are_accepted():
    first, second = (
        AdaptiveKLController(0.2, 6.0, 10),
        AdaptiveKLController(0.2, target=6.0, horizon=10),
    )
    first.update(current_kl=9.0, n_steps=4)
    second.update(current=9.0, n_steps=4)
    assert first.value == second.value != 0.2
    with pytest.raises(UserError, match="target_kl"):
        AdaptiveKLController(0.2)
