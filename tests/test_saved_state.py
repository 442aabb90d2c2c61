"""Tests of `state_dict` and of saved states that version 0.1 wrote."""

import itertools
import math
import warnings

import pytest
import torch
from law_cases import LAWS, TRACE

import controlvae as cv

# Every law of version 0.1 saved these fields.
FIELDS = (
    "step",
    "seen",
    "held",
    "target",
    "measured",
    "error",
    "p",
    "i",
    "d",
    "output",
    "beta",
    "last",
    "spread",
    "pending_sum",
    "pending_count",
    "law",
)
MEASUREMENTS = (21.0, 16.0, 18.5)

# Written by version 0.1 after the measurements 3, 25, NaN and 19.5 and, for feedback laws,
# `set_target(17.0)`: the law, its saved values, and β for MEASUREMENTS.
SAVED = [
    (
        cv.PI(18.0, ema=0.5),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            16.75,
            0.25,
            0.004378234991142019,
            -0.0034012336028889307,
            0.0,
            0.0009770013882530882,
            0.0009770013882530882,
            0.0,
            0.0,
            0.0,
            0,
            6469279.0,
        ),
        [0.007144123995132776, 0.004987898095439987, 0.007128719158879316],
    ),
    (
        cv.PID(18.0, kd=0.1),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            19.5,
            -2.5,
            0.025,
            -0.0015000000000000013,
            0.143,
            0.16649999999999998,
            0.16649999999999998,
            0.0,
            0.0,
            0.0,
            0,
            16221799.0,
        ),
        [0.18619999999999998, 0.07082999999999998, 0.11439699999999998],
    ),
    (
        cv.LagrangeMultiplier(18.0, alpha=1e-3),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            19.5,
            -2.5,
            -0.0,
            0.0085,
            -0.0,
            0.0085,
            0.0085,
            0.0,
            0.0,
            0.0,
            0,
            9273620.0,
        ),
        [0.0125, 0.0115, 0.013],
    ),
    (
        cv.Capacity(18.0, gamma=10.0),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            19.5,
            -2.5,
            10.0,
            10.0,
            0.0,
            10.0,
            10.0,
            0.0,
            0.0,
            0.0,
            0,
            10408738.0,
        ),
        [10.0, -10.0, 10.0],
    ),
    (
        cv.Auto(18.0),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            6.629999999999999,
            10.370000000000001,
            -1.7553956834532376,
            -0.16016502063890958,
            -0.0,
            0.14725924057468964,
            0.14725924057468964,
            19.5,
            0.0,
            0.0,
            0,
            8948420.0,
        ),
        [0.20193162457113578, 0.23552920203469807, 0.28151674777041163],
    ),
    (
        cv.Geco(18.0, alpha=1e-3),
        (
            4.0,
            3.0,
            1.0,
            17.0,
            3.3828,
            13.6172,
            0.0,
            0.0443972,
            0.0,
            1.045397504323025,
            1.045397504323025,
            0.0,
            0.0,
            0.0,
            0,
            4649726.0,
        ),
        [1.05954357736172, 1.0737474781976541, 1.0879805780993579],
    ),
    (
        cv.Linear(0.0, 1.0, steps=10),
        (4.0, 3.0, 0.0, 0.0, 19.5, 0.0, 0.0, 0.0, 0.0, 0.4, 0.4, 0.0, 0.0, 0.0, 0, 7519621.0),
        [0.5, 0.6, 0.7],
    ),
]

MIXED_LAWS = [cv.PI(18.0), cv.PI(18.0), cv.Auto(18.0), cv.Constant(2.0)]
# Written by version 0.1 with MIXED_LAWS, without `set_target`. The second model measured one nat
# more than the others.
MIXED_SAVED = {
    "step": [4.0, 4.0, 4.0, 4.0],
    "seen": [3.0, 3.0, 3.0, 3.0],
    "held": [0.0, 0.0, 0.0, 0.0],
    "target": [18.0, 18.0, 18.0, 0.0],
    "measured": [19.5, 20.5, 6.629999999999999, 19.5],
    "error": [-1.5, -2.5, 11.370000000000001, 0.0],
    "p": [0.008175744761936436, 0.009241418199787566, -1.84652862362972, 0.0],
    "i": [0.0085, 0.0105, -0.06903208046242723, 0.0],
    "d": [0.0, 0.0, -0.0, 0.0],
    "output": [0.016675744761936437, 0.019741418199787565, 0.14725924057468964, 2.0],
    "beta": [0.016675744761936437, 0.019741418199787565, 0.14725924057468964, 2.0],
    "last": [0.0, 0.0, 19.5, 0.0],
    "spread": [0.0, 0.0, 0.0, 0.0],
    "pending_sum": [0.0, 0.0, 0.0, 0.0],
    "pending_count": [0.0, 0.0, 0.0, 0.0],
    "law": [6469279.0, 6469279.0, 8948420.0, 1881998.0],
}
MIXED_BETAS = [
    [0.021025741268224332, 0.023025741268224334, 0.20019899566458352, 2.0],
    [0.010692029220221175, 0.012692029220221177, 0.23250761157129213, 2.0],
    [0.016224593312018545, 0.018224593312018547, 0.27671181030989966, 2.0],
]


@pytest.mark.parametrize("kind", [float, lambda x: torch.tensor(x, dtype=torch.float64)])
@pytest.mark.parametrize(("law", "values", "betas"), SAVED, ids=lambda x: "")
def test_states_of_version_0_1_resume(law, values, betas, kind):
    control = cv.Controller(law)
    saved = {name: kind(value) for name, value in zip(FIELDS, values, strict=True)}
    control.load_state_dict(saved)
    # `Auto` is another law since 0.2. It resumes near the weight that it had.
    tolerance = 0.5 if isinstance(law, cv.Auto) else 1e-15
    resumed = [float(control.step(kind(x))) for x in MEASUREMENTS]
    assert resumed == pytest.approx(betas, rel=tolerance)
    assert float(control.state.step) == 4 + len(MEASUREMENTS)


def test_mixed_states_of_version_0_1_resume():
    saved = {name: torch.tensor(v, dtype=torch.float64) for name, v in MIXED_SAVED.items()}
    control, single = cv.Controller(MIXED_LAWS), cv.Controller(MIXED_LAWS)
    control.load_state_dict(saved)
    for model in range(4):  # as from the checkpoints of four runs
        single.load_state_dict({name: value[model] for name, value in saved.items()}, model)
    for x, betas in zip(MEASUREMENTS, MIXED_BETAS, strict=True):
        measured = torch.full((4,), x, dtype=torch.float64)
        resumed = control.step(measured).tolist()
        auto, expected = resumed.pop(2), list(betas)
        assert auto == pytest.approx(expected.pop(2), rel=0.5)
        assert resumed == pytest.approx(expected, rel=1e-12)
        assert single.step(measured).equal(control.beta)


def test_states_without_the_youngest_fields_load():
    law, values, _ = SAVED[4]  # Auto
    saved = dict(zip(FIELDS, values, strict=True))
    for name in ("last", "spread", "law"):
        del saved[name]
    control = cv.Controller(law)
    control.load_state_dict(saved)
    assert control.state.last_measurement == 0.0
    assert control.state.gain == 1.0


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_state_has_only_the_fields_of_the_law(law):
    saved = cv.Controller(law, monitor=False).state_dict()
    names = set(saved) - {"pending_sum", "pending_count", "law"}
    assert names == set(law.initial_state()._fields)
    assert len(names) <= 23
    assert not law.open_loop or names == {"step", "measured", "beta", "measured_count"}


def test_one_model_of_several_is_saved_and_restored():
    laws = [cv.PI(16.0), cv.Constant(4.0), cv.Auto(18.0), cv.LagrangeMultiplier(18.0)]
    together = cv.Controller(laws)
    for x in TRACE:
        together.step(torch.full((4,), x))
    restored = cv.Controller(laws)
    for model, law in enumerate(laws):
        saved = together.state_dict(model)
        assert set(saved) == set(cv.Controller(law).state_dict())
        restored.load_state_dict(saved, model)
        alone = cv.Controller(law)
        alone.load_state_dict({name: value.item() for name, value in saved.items()})
        assert alone.beta == together.beta[model].item()
    for name, value in together.state_dict().items():
        assert restored.state_dict()[name].equal(value)


def test_signals_are_zero_for_missing_terms():
    control = cv.Controller([cv.PI(16.0), cv.Constant(4.0), cv.Geco(18.0)])
    control.step(torch.tensor([30.0, 20.0, 10.0]))
    signals = control.signals()
    assert signals.beta.equal(control.beta)
    assert signals.proportional[1:].tolist() == [0.0, 0.0]
    assert signals.target.tolist() == [16.0, 0.0, 18.0]
    assert control.stats()["saturated"] == [False, False, False]


WRONG_VALUES = [math.nan, math.inf, 10**400, "5", None, [1.0], 1j, True, torch.zeros(2)]


@pytest.mark.parametrize("wrong", WRONG_VALUES, ids=repr)
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_damaged_states_are_refused_by_name(kind, wrong):
    control = cv.Controller(cv.Auto(18.0))
    for measured in (4.0, 5.0):
        control.step(kind(measured))
    saved = control.state_dict()
    before = {name: float(value) for name, value in saved.items()}
    for name in saved:
        with pytest.raises(ValueError, match=f"'{name}'"):
            control.load_state_dict({**saved, name: wrong})
    assert {name: float(value) for name, value in control.state_dict().items()} == before


WRONG_NUMBERS = [-1.0, 0.5, 17.0, 1e14, 1e150, -1e150, 1e308, -1e308, 1e-300, -1e-300]


@pytest.mark.parametrize("law", [cv.PI(18.0), cv.Auto(18.0), cv.LogLagrange(18.0)], ids=repr)
@pytest.mark.parametrize("kind", [float, lambda x: torch.tensor(x, dtype=torch.float64)])
def test_altered_numbers_are_refused_by_name_or_trained_with(law, kind):
    control = cv.Controller(law)
    for measured in (4.0, 30.0, 7.0) * 20:
        control.step(kind(measured))
    saved = control.state_dict()
    refused, trained = [], 0
    for name, wrong in itertools.product(saved, WRONG_NUMBERS):
        altered = cv.Controller(law)
        try:
            altered.load_state_dict({**saved, name: wrong})
        except ValueError as error:
            refused.append((name, str(error)))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cv.ControlWarning)
            for measured in (18.0, 17.9, 0.0, 5.0) * 8:
                assert law.bounds[0] <= float(altered.step(kind(measured))) <= law.bounds[1]
            altered.certificate()
        assert all(math.isfinite(value) for value in altered.state_dict().values())
        trained += 1
    assert trained > 0
    assert refused
    assert all(f"'{name}'" in message for name, message in refused if name != "law")


def test_a_damaged_state_of_one_of_several_models_is_refused_by_name():
    control = cv.Controller(cv.PI(18.0), models=3)
    control.step(torch.tensor([3.0, 4.0, 5.0]))
    saved = control.state_dict()
    saved["integral"][1] = math.nan
    with pytest.raises(ValueError, match="'integral' must be finite"):
        control.load_state_dict(saved)
    single = {**control.state_dict(1), "beta": -math.inf}
    with pytest.raises(ValueError, match="'beta' must be finite"):
        control.load_state_dict(single, 1)


def test_a_refused_state_leaves_all_controllers_as_they_were():
    control = cv.Controllers({"a": cv.PI(18.0), "b": cv.PI(3.0)})
    control.step(a=20.0, b=4.0)
    before, other = control.state_dict(), cv.Controllers({"a": cv.PI(18.0), "b": cv.PI(3.0)})
    saved = other.state_dict()
    saved["b"]["beta"] = math.nan
    with pytest.raises(ValueError, match="b: saved 'beta'"):
        control.load_state_dict(saved)
    assert control.state_dict() == before


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"delayed": True}])
def test_new_bounds_apply_to_a_loaded_weight_at_once(kind, options):
    wide = cv.Controller(cv.PI(18.0, beta_max=1.0, beta_init=1.0), **options)
    wide.step(kind(40.0))
    narrow = cv.Controller(cv.PI(18.0, beta_max=0.3), **options)
    narrow.load_state_dict(wide.state_dict())
    assert float(wide.beta) == pytest.approx(1.0)
    assert float(narrow.beta) == 0.3
    assert float(narrow.step(kind(40.0))) <= 0.3 + 1e-7  # float32


def test_new_bounds_apply_to_each_loaded_model():
    wide = cv.Controller(cv.PI(18.0, beta_max=1.0, beta_init=1.0), models=2)
    narrow = cv.Controller([cv.PI(18.0, beta_max=0.3), cv.PI(18.0, beta_max=0.7)])
    narrow.load_state_dict(wide.state_dict())
    assert narrow.beta.tolist() == [0.3, 0.7]


def test_a_window_with_an_unusable_micro_batch_is_saved_in_finite_numbers():
    controls = [cv.Controller(cv.PI(18.0), accumulate=3) for _ in range(2)]
    for kind, control in zip((float, torch.tensor), controls, strict=True):
        control.step(kind(20.0))
        control.step(kind(math.nan))
        saved = control.state_dict()
        assert all(math.isfinite(value) for value in saved.values())
        resumed = cv.Controller(cv.PI(18.0), accumulate=3)
        resumed.load_state_dict(saved)
        for each in (control, resumed):
            each.step(kind(20.0))
            assert each.stats()["skipped"] == 1
            assert each.stats()["measured"] is None
