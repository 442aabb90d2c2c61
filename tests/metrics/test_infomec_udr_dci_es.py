"""Tests of InfoMEC, explicitness, MIG-sup, UDR and DCI-ES.

References are closed forms, scikit-learn, and numbers of the authors' code on the same arrays:
`references.json`, which `make_references.py` writes.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_codes import FACTORS, ROTATION, code_cases, model_cases
from sklearn.feature_selection import mutual_info_classif
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.metrics import roc_auc_score

from controlvae.metrics.disentanglement import dci, dci_es, explicitness, infomec, mig_sup, udr
from controlvae.metrics.disentanglement._logistic_regression import logistic_regression
from controlvae.metrics.disentanglement.dci import importance_scores
from controlvae.metrics.disentanglement.dci_es import explicitness_of_curve
from controlvae.metrics.disentanglement.explicitness import roc_auc
from controlvae.metrics.disentanglement.infomec import (
    modularity_and_compactness,
    neighbour_information,
)
from controlvae.metrics.disentanglement.udr import _lasso

REFERENCES = json.loads((Path(__file__).parent / "references.json").read_text(encoding="utf-8"))
CODES = code_cases()
GRID = np.indices((4, 4)).reshape(2, -1).T.repeat(20, axis=0)


# InfoMEC


@pytest.mark.parametrize("name", CODES)
def test_infomec_equals_the_released_code(name):
    theirs, ours = (
        REFERENCES["infomec"][name],
        infomec(CODES[name], FACTORS, discrete=name == "quantised"),
    )
    np.testing.assert_allclose(ours.normalised_information, theirs["nmi"], atol=1e-12)
    assert ours.active == theirs["active"]
    # Their optimiser stops early where classes are separable or nearly so.
    assert ours.infoe == pytest.approx(theirs["infoe"], abs=5e-4)
    for key in ("infom", "infoc"):
        value = getattr(ours, key)
        if math.isnan(theirs[key]):  # 0 / 0, where a latent or a factor has no information
            assert 0 <= value <= 1
        else:
            assert value == pytest.approx(theirs[key], abs=1e-12)


def test_information_equals_scikit_learn():
    rng = np.random.default_rng(5)
    labels = rng.choice(5, 800, p=[0.4, 0.3, 0.2, 0.09, 0.01])
    labels[0] = 5  # a value that occurs once
    code = labels + rng.normal(size=800)
    code /= code.std()
    theirs = mutual_info_classif(
        code[:, None], labels, discrete_features=False, n_neighbors=10, random_state=0
    )[0]
    # Theirs may count a neighbour at the very radius, by the rounding of a root.
    assert neighbour_information(code, labels, 10) == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize(
    ("information", "infom", "infoc"),
    [
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.5]], 2 / 3, 1.0),  # a latent that tells nothing
        ([[0.0, 0.0], [0.0, 0.0]], 0.0, 0.0),
        ([[1.0], [0.5]], 1 / 3, 1.0),  # one active latent for both factors
        ([[1.0], [0.0]], 1.0, 0.5),
        ([[0.5, 0.5], [0.5, 0.5]], 0.0, 0.0),
    ],
)
def test_shares_of_zero_are_the_least_possible(information, infom, infoc):
    assert modularity_and_compactness(np.array(information)) == pytest.approx((infom, infoc))


def test_perfect_and_useless_codes():
    perfect = infomec(GRID, GRID, discrete=True, factor_names=("a", "b"))
    assert (perfect.infom, perfect.infoc) == (1, 1)
    assert perfect.per_factor == pytest.approx({"a": 1, "b": 1}, abs=1e-3)
    assert infomec(np.hstack([GRID, GRID]), GRID, discrete=True).infoc == pytest.approx(1 / 3)
    constant = infomec(np.zeros((320, 2)), GRID)
    assert (constant.infom, constant.infoc, constant.active) == (0, 0, [])
    assert constant.infoe == pytest.approx(0, abs=1e-9)


# Explicitness


@pytest.mark.parametrize("name", CODES)
def test_explicitness_equals_disentanglement_lib(name):
    theirs = REFERENCES["explicitness"][name]
    ours = explicitness(CODES[name], FACTORS, learn=1_000, test=440, seed=3)
    # Their optimiser stops early, at a gradient of 1e-4.
    assert ours.per_factor == pytest.approx(theirs["tested"], abs=5e-4)
    assert ours.score_learnt == pytest.approx(np.mean(theirs["learnt"]), abs=5e-5)


def test_area_under_the_curve_equals_scikit_learn():
    rng = np.random.default_rng(6)
    labels, scores = rng.integers(0, 3, 200), np.round(rng.normal(size=(200, 3)), 1)
    one_hot = np.eye(3)[labels] == 1
    assert roc_auc(scores, one_hot) == pytest.approx(roc_auc_score(one_hot, scores))


@pytest.mark.parametrize("balanced", [False, True])
def test_classifier_of_two_classes_equals_logistic_regression(balanced):
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.2).astype(np.int64)
    x = labels[:, None] + rng.normal(size=(500, 3))
    theirs = LogisticRegression(
        tol=1e-10, max_iter=10_000, class_weight="balanced" if balanced else None
    ).fit(x, labels)
    # The penalty of scikit-learn is relative to the sum of weights, which is the same.
    weight, offset = logistic_regression(x, labels, 2, balanced=balanced)
    np.testing.assert_allclose(weight[:, 1] - weight[:, 0], theirs.coef_[0], atol=1e-5)
    assert offset[1] - offset[0] == pytest.approx(theirs.intercept_[0], abs=1e-5)


def test_explicitness_does_not_depend_on_the_rotation_of_a_code():
    scores = [
        explicitness(codes, FACTORS).score for codes in (CODES["noisy"], CODES["noisy"] @ ROTATION)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)
    dead = np.hstack([CODES["noisy"], np.ones((len(FACTORS), 1))])
    assert explicitness(dead, FACTORS).score == pytest.approx(scores[0], abs=1e-6)


# MIG-sup


@pytest.mark.parametrize("name", CODES)
def test_mig_sup_equals_ubisoft(name):
    # Theirs divides by the entropy of the code; the reference was made with that of the factor,
    # as in the paper. Its bins are of [0, 1] after scaling, so an example may change its bin.
    ours = mig_sup(CODES[name], FACTORS, min_variance=0)
    assert ours.score == pytest.approx(REFERENCES["mig_sup"][name], abs=1e-9)


def test_mig_sup_averages_over_active_latents():
    codes = np.hstack([GRID, 0.01 * GRID[:, :1]])
    assert mig_sup(codes, GRID).active == [0, 1]
    assert mig_sup(codes, GRID).score == pytest.approx(1)
    assert mig_sup(codes[:, [2, 2]], GRID).score == 0
    both = 4 * GRID[:, :1] + GRID[:, 1:]  # MIG is 1 here
    assert mig_sup(np.hstack([both, 0 * both]), GRID).score == pytest.approx(0, abs=1e-9)


# UDR


@pytest.mark.parametrize("similarity", ["lasso", "spearman"])
def test_udr_equals_disentanglement_lib(similarity):
    theirs, ours = REFERENCES["udr"][similarity], udr(*model_cases(), similarity=similarity)
    # scikit-learn's lasso stops at a duality gap of 1e-4.
    tolerance = 1e-4 if similarity == "lasso" else 1e-12
    np.testing.assert_allclose(ours.pairs, theirs["pairs"], atol=tolerance)
    np.testing.assert_allclose(ours.scores, theirs["scores"], atol=tolerance)


def test_lasso_equals_scikit_learn_at_its_optimum():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4))
    y = x @ rng.normal(size=(4, 3)) + rng.normal(size=(300, 3))
    x, y = ((values - values.mean(0)) / values.std(0) for values in (x, y))
    theirs = np.abs(Lasso(alpha=0.1, tol=1e-12, max_iter=100_000).fit(x, y).coef_.T)
    np.testing.assert_allclose(_lasso(x, y), theirs, atol=1e-8)


def test_udr_ranks_agreeing_models_first_and_needs_no_equal_sizes():
    codes, _ = model_cases()
    agreeing = [codes[0], codes[1], codes[0][:, :4], codes[2]]
    ranked = udr(agreeing).scores
    assert min(ranked[:3]) > ranked[3]
    assert udr([codes[0], codes[0]]).scores == pytest.approx([0.9, 0.9])  # shrunk by 0.1
    assert udr([codes[0], codes[0]], similarity="spearman").pairs[0][1] > 0.9


# DCI-ES


def test_explicitness_of_curves_equals_the_released_code():
    for curve in REFERENCES["dci_es"]["curves"]:
        ours = explicitness_of_curve(curve["capacities"], curve["losses"], curve["chance"])
        assert ours == pytest.approx(curve["explicitness"], abs=1e-12)


def test_disentanglement_and_completeness_equal_the_released_code():
    theirs = REFERENCES["dci_es"]
    expected = (theirs["disentanglement"], theirs["completeness"])
    assert importance_scores(theirs["importance"]) == pytest.approx(expected, abs=1e-9)


def test_explicitness_falls_where_a_linear_probe_is_not_enough():
    angle = 2 * np.pi * GRID / 4 + 0.3
    linear, round_trip = 1.0 * GRID, np.hstack([np.cos(3 * angle), np.sin(3 * angle)])
    scores = [
        dci_es(codes + 0.02 * np.random.default_rng(0).normal(size=codes.shape), GRID, **settings)
        for codes in (linear, round_trip)
        for settings in [{"quantities": (0, 1), "widths": (0, 8, 64, 256)}]
    ]
    assert scores[0].explicitness > 0.98
    assert scores[1].explicitness < 0.95
    assert scores[1].informativeness > 0.95
    assert [score.size for score in scores] == [1.0, 0.5]
    trees = dci(linear + 0.02 * np.random.default_rng(0).normal(size=linear.shape), GRID)
    assert scores[0].disentanglement == trees.disentanglement
    assert np.diff(scores[1].losses, axis=1).max() <= 0


def test_probes_of_classes_count_errors():
    codes = np.eye(4)[GRID[:, 0]]
    result = dci_es(codes, GRID, widths=(0, 16), factor_names=("known", "unknown"))
    assert result.losses[0] == [0, 0]
    assert result.losses[1][-1] > 0.6
    assert result.per_factor["known"] == 1


# All of them


SCORES = {
    "infomec": lambda z, y: infomec(z, y).normalised_information,
    "explicitness": lambda z, y: explicitness(z, y).per_factor,
    "mig_sup": lambda z, y: mig_sup(z, y).score,
    "dci_es": lambda z, y: dci_es(z, y, widths=(0, 8)).losses,
}


@pytest.mark.parametrize("name", SCORES)
def test_arrays_and_tensors_give_equal_results(name):
    codes = CODES["noisy"]
    given = torch.from_numpy(codes).requires_grad_(), torch.from_numpy(FACTORS)
    assert SCORES[name](*given) == SCORES[name](codes, FACTORS)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(
    ("codes", "factors", "message"),
    [
        (np.ones((9, 2)), np.ones((8, 2), int), "one row per example"),
        (np.full((9, 2), np.nan), np.ones((9, 2), int), "finite"),
        (np.ones(9), np.ones((9, 2), int), r"\(examples, latents\)"),
        (np.ones((9, 2)), np.ones((9, 2), int), "constant"),
    ],
)
def test_unusable_arrays_are_refused(name, codes, factors, message):
    with pytest.raises(ValueError, match=message):
        SCORES[name](codes, factors)


@pytest.mark.parametrize(
    ("codes", "more", "message"),
    [
        ([CODES["noisy"]], {}, "at least 2 models"),
        ([CODES["noisy"], CODES["noisy"][:9]], {}, "same examples"),
        ([CODES["noisy"]] * 2, {"kl": [np.ones(5), np.ones(4)]}, "one number per latent"),
        ([CODES["noisy"]] * 2, {"similarity": "kendall"}, "'lasso' or 'spearman'"),
    ],
)
def test_unusable_models_are_refused(codes, more, message):
    with pytest.raises(ValueError, match=message):
        udr(codes, **more)


def test_unusable_settings_are_refused():
    with pytest.raises(ValueError, match="increasing"):
        dci_es(GRID, GRID, widths=(8, 4))
    with pytest.raises(ValueError, match="columns of factors"):
        dci_es(GRID, GRID, quantities=(2,))
    with pytest.raises(ValueError, match="neighbours"):
        infomec(GRID, GRID, neighbours=0)
