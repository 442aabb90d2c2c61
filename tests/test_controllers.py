"""Tests of `Controllers`, and of one controller for a vector of set points."""

import importlib
from pathlib import Path

import pytest
import torch

import controlvae as cv

EXAMPLES = Path(__file__).parents[1] / "examples"


def make_pair(**options):
    laws = {"kl": cv.PI(3.0), "entropy": cv.LagrangeMultiplier.at_least(0.5, direction="inverse")}
    return cv.Controllers(laws, **options)


def test_each_term_is_controlled_by_its_own_law():
    together = make_pair()
    alone = {name: cv.Controller(together[name].laws[0]) for name in together}
    for kl, entropy in ((5.0, 0.9), (4.0, 0.2), (2.0, 0.1)):
        expected = {"kl": alone["kl"].step(kl), "entropy": alone["entropy"].step(entropy)}
        assert together.step(kl=kl, entropy=entropy) == expected
    assert together.weights == expected
    assert together.stats() == {name: control.stats() for name, control in alone.items()}


def test_measurements_may_be_a_dict_or_keywords():
    by_dict, by_keywords = make_pair(), make_pair()
    assert by_dict.step({"kl": 4.0, "entropy": 0.1}) == by_keywords.step(kl=4.0, entropy=0.1)
    weights = by_dict.step({"kl": torch.tensor(4.0)}, entropy=0.1)
    assert isinstance(weights["kl"], torch.Tensor)
    assert isinstance(weights["entropy"], float)


def test_state_resumes():
    first, second = make_pair(), make_pair()
    first.set_target(kl=2.0)
    for kl in (5.0, 4.0):
        first.step(kl=kl, entropy=0.3)
    second.load_state_dict(first.state_dict())
    assert second.step(kl=3.0, entropy=0.2) == first.step(kl=3.0, entropy=0.2)
    assert second.targets == {"kl": 2.0, "entropy": 0.5}


def test_each_term_has_a_certificate():
    control = make_pair()
    for step in range(300):
        control.step(kl=3.0 + 0.1 * (step % 3 - 1), entropy=0.1)
    certificates = control.certificate()
    assert certificates["kl"].settled
    assert not certificates["entropy"].settled


def test_options_reach_the_laws_and_controllers_keep_theirs():
    control = cv.Controllers(
        {"kl": cv.PI(3.0), "rate": cv.Controller(cv.PI(2.0), models=2)}, accumulate=2
    )
    assert (control["kl"].accumulate, control["rate"].accumulate) == (2, 1)
    first = control.step(kl=4.0, rate=torch.ones(2))
    control.step(kl=4.0, rate=torch.ones(2), last=True)
    assert control.weights["kl"] != first["kl"]
    assert len(control) == 2
    assert "rate" in control
    assert repr(control).startswith("Controllers({'kl': Controller(PI(target=3.0")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.step(kl=3.0), "entropy"),
        (lambda c: c.step(kl=3.0, entropy=0.1, tc=1.0), "tc"),
        (lambda c: c.set_target(tc=1.0), "tc"),
        (lambda c: c.load_state_dict({"kl": {}}), "entropy"),
        (lambda c: c.load_state_dict({"kl": {}, "entropy": {}}), "kl: .*missing"),
        (lambda c: cv.Controllers({}), "dict of laws"),
        (lambda c: cv.Controllers([cv.PI(3.0)]), "dict of laws"),
        (lambda c: cv.Controllers({"last": cv.PI(3.0)}), "'last'"),
        (lambda c: cv.Controllers({"kl": 3.0}), "law must be a law"),
    ],
)
def test_misuse_raises_with_the_name(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(make_pair())


def test_groups_are_controlled_independently():
    targets = [0.5, 1.0, 2.0]
    control = cv.Controller(cv.PI(1.0), groups=3, targets=targets)
    alone = [cv.Controller(cv.PI(target)) for target in targets]
    assert control.target.tolist() == targets
    for step in range(20):
        measured = torch.tensor([0.1 * step, 1.5, 3.0 - 0.2 * step], dtype=torch.float64)
        expected = [each.step(x) for each, x in zip(alone, measured.tolist(), strict=True)]
        assert control.step(measured).tolist() == pytest.approx(expected, rel=1e-12)
    assert len(control._layout.groups) == 1  # one update for all of them


def test_groups_hold_their_set_points():
    targets = torch.tensor([10.0, 20.0, 40.0])
    control = cv.Controller(cv.PI(1.0), targets=targets)
    kl = torch.zeros(3)
    for _ in range(4_000):
        kl += 0.05 * (60.0 / (1.0 + 2.0 * control.step(kl)) - kl)
    assert kl[1:].tolist() == pytest.approx([20.0, 40.0], rel=0.01)
    assert kl[0].item() == pytest.approx(20.0, rel=0.01)  # beta_max is in the way of 10


def test_example_holds_every_latent(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("vector_set_points")
    control = cv.Controller(cv.Auto(1.0), targets=example.SET_POINTS)
    result = example.train_digits(lambda kl: control.step(kl) @ kl, steps=1_200)
    assert result.largest_error() < 0.05


def test_state_of_groups_keeps_their_targets():
    first = cv.Controller(cv.PI(1.0), targets=[1.0, 2.0])
    first.step(torch.tensor([3.0, 3.0]))
    second = cv.Controller(cv.PI(1.0), groups=2)
    second.load_state_dict(first.state_dict())
    assert second.target.tolist() == [1.0, 2.0]
    second.set_target([4.0, 5.0])
    assert second.target.tolist() == [4.0, 5.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 3, "targets": [1.0, 2.0]}, "groups=3"),
        ({"groups": 3, "models": 2}, "models=2, groups=3"),
        ({"groups": 0}, "at least 1"),
        ({"groups": 1.5}, "whole number"),
        ({"targets": 3.0}, "targets"),
        ({"targets": [1.0, float("nan")]}, "finite"),
    ],
)
def test_unusable_groups_raise(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        cv.Controller(cv.PI(1.0), **arguments)
