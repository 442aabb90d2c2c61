"""Tests of DCI, SAP, FactorVAE score, β-VAE score and modularity.

References are closed forms, scikit-learn, plain definitions and invariances.
"""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score
from sklearn.svm import LinearSVC

from controlvae.errors import UserError
from controlvae.lab.config import Shapes2D
from controlvae.lab.data.factors import Factors, read_factors
from controlvae.lab.evaluation.disentanglement import LabelledCodes, compute_scores, score_run
from controlvae.lab.evaluation.external_codes import score_codes
from controlvae.lab.evaluation.scores import DISENTANGLEMENT_SCORES
from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.metrics import beta_vae_score, factor_vae_score, mig_histogram
from controlvae.metrics._validation import split_train_test
from controlvae.metrics.disentanglement import dci, modularity, sap
from controlvae.metrics.disentanglement._gradient_boosting import boost
from controlvae.metrics.disentanglement._shared_factor import draw_partners
from controlvae.metrics.disentanglement.beta_vae import logistic_regression
from controlvae.metrics.disentanglement.dci import importance_scores
from controlvae.metrics.disentanglement.sap import linear_svm

Y1, Y2 = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
BOTH = np.stack([Y1, Y2], 1)
GRID = np.stack(np.meshgrid(np.arange(2), np.arange(3), np.arange(5), indexing="ij"), -1).reshape(
    -1, 3
)
FACTORS = np.tile(GRID, (20, 1))  # 600 examples
# Factors permuted and scaled, and a constant latent.
COPIED = np.hstack([FACTORS[:, [2, 0, 1]] * [0.5, -3.0, 1.0], 0 * FACTORS[:, :1]])


def noisy(seed=0):
    """Return five latents: three factors with noise, a mixture of two, and noise."""
    a, b, c = (FACTORS / (GRID.max(0) + 1) * 3 - 1.2).T
    noise = np.random.default_rng(seed).normal(size=(len(FACTORS), 5))
    return np.stack([a, 1.5 * b, c, b + 0.5 * c, 0 * a], 1) + [0.1, 0.2, 0.3, 0.2, 0.5] * noise


SCORES = {
    "dci": dci,
    "sap": sap,
    "factor_vae": lambda z, y, **more: factor_vae_score(z, y, learn=2_000, test=1_000, **more),
    "beta_vae": lambda z, y, **more: beta_vae_score(z, y, batch=3, learn=2_000, test=1_000, **more),
    "modularity": modularity,
}


def main_score(result):
    return result.score if hasattr(result, "score") else result.disentanglement


# Closed forms


@pytest.mark.parametrize(
    ("importance", "disentanglement", "completeness"),
    [
        ([[1, 0], [0, 1]], 1, 1),
        ([[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]], 1, 1),  # any order, a constant latent
        ([[1, 1], [1, 1]], 0, 0),
        ([[0, 0], [0, 0]], 0, 0),
        # One factor in two latents.
        ([[0.5, 0], [0.5, 0], [0, 1]], 1, 1 - math.log(2) / math.log(3) / 2),
        ([[1, 1], [0, 0]], 0, 1),  # one latent for both factors
        ([[3, 1], [1, 3]], 0.1887218755, 0.1887218755),  # 1 - h(1/4) / ln 2
        # Rows have the weights 8 and 4.
        ([[6, 2], [0, 4]], 8 / 12 * 0.1887218755 + 4 / 12, 1 / 2 + (1 - 0.9182958341) / 2),
    ],
)
def test_scores_of_importances(importance, disentanglement, completeness):
    assert importance_scores(importance) == pytest.approx((disentanglement, completeness), abs=1e-9)


def test_copied_factors_get_perfect_scores():
    perfect = dci(COPIED, FACTORS, factor_names=("a", "b", "c"))
    assert (perfect.disentanglement, perfect.completeness) == pytest.approx((1, 1), abs=1e-6)
    assert perfect.per_factor == {"a": 1, "b": 1, "c": 1}
    np.testing.assert_allclose(
        perfect.importance, [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]], atol=1e-6
    )
    assert sap(COPIED, FACTORS, continuous=True).per_factor == pytest.approx([1, 1, 1])
    votes = factor_vae_score(COPIED, FACTORS)
    assert (votes.score, votes.score_learnt, votes.active_latents) == (1, 1, 3)
    assert beta_vae_score(COPIED, FACTORS).score == 1
    assert modularity(COPIED, FACTORS).per_latent == pytest.approx([1, 1, 1, 0], abs=1e-12)


def test_a_rotated_code_is_informative_but_not_disentangled():
    y = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2).repeat(20, 0)
    codes = np.stack([y[:, 0] + y[:, 1], y[:, 0] - y[:, 1]], 1)
    result = dci(codes, y)
    assert result.disentanglement < 0.05
    assert result.completeness < 0.05
    assert result.informativeness > 0.9
    continuous = sap(codes, y, continuous=True)
    np.testing.assert_allclose(continuous.predictability, 0.5)  # each latent has half of both
    assert continuous.score == pytest.approx(0, abs=1e-12)
    assert modularity(codes, y).score == pytest.approx(0, abs=1e-9)
    assert factor_vae_score(codes, y).score == pytest.approx(0.5, abs=0.05)  # chance level


def test_a_single_used_latent_gets_every_vote():
    codes = np.stack([FACTORS @ [15, 5, 1], 0 * FACTORS[:, 0]], 1)
    result = factor_vae_score(codes, FACTORS)
    assert result.votes[1] == [0, 0, 0]
    assert result.score_learnt == max(result.votes[0]) / 10_000
    assert result.score == pytest.approx(1 / 3, abs=0.03)


def test_factor_vae_score_is_zero_without_active_latents():
    result = factor_vae_score(0.01 * noisy(), FACTORS)
    assert (result.score, result.active_latents) == (0, 0)


def test_modularity_of_two_bits():
    codes = np.stack([Y1, Y1 & Y2, 0 * Y1], 1)  # one factor, both equally, none
    assert modularity(codes, BOTH).per_latent == pytest.approx([1, 0, 0], abs=1e-12)


# Against scikit-learn


@pytest.mark.parametrize("classes", [2, 4])
def test_trees_equal_scikit_learn(classes):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 600)
    noise = rng.normal(size=(600, 4))
    # Rounding leaves fewer than 256 values.
    codes = np.round(np.stack([y, y % 2, 0 * y, y], 1) + noise * [1, 0.4, 1, 3], 1)
    labels, given = torch.tensor(y[:400]), torch.tensor(codes)
    # Trees of two levels have large nodes without ties, so they agree up to rounding.
    theirs = GradientBoostingClassifier(n_estimators=30, max_depth=2, random_state=0).fit(
        codes[:400], y[:400]
    )
    ours = boost(given, labels, trees=30, depth=2)
    np.testing.assert_allclose(ours.importance, theirs.feature_importances_, atol=1e-9)
    assert (ours.predicted[:400].numpy() == theirs.predict(codes[:400])).all()
    # The default depth has ties, which both resolve at random.
    theirs = GradientBoostingClassifier(random_state=0).fit(codes[:400], y[:400])
    for kind in (torch.float64, torch.float32):
        ours = boost(given.to(kind), labels)
        np.testing.assert_allclose(ours.importance, theirs.feature_importances_, atol=0.01)
    assert (ours.predicted.numpy() == theirs.predict(codes)).mean() > 0.97


# Below the resolution of float32, and above it near 0 but below 1e-7.
@pytest.mark.parametrize("rounding", [1e-12, 1e-8])
def test_codes_equal_up_to_rounding_count_as_equal(rounding):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    codes = np.round(np.stack([y, y % 2, 0 * y], 1) + rng.normal(size=(600, 3)), 1)
    codes += rounding * rng.normal(size=codes.shape)
    theirs = GradientBoostingClassifier(n_estimators=30, max_depth=2, random_state=0).fit(
        codes[:400], y[:400]
    )
    ours = boost(torch.tensor(codes), torch.tensor(y[:400]), trees=30, depth=2)
    np.testing.assert_allclose(ours.importance, theirs.feature_importances_, atol=1e-9)
    assert (ours.predicted.numpy() == theirs.predict(codes)).all()


@pytest.mark.parametrize(("rows", "tolerance"), [(2_000, 1e-3), (4_000, 0.01)])
def test_importances_of_many_values_are_close_to_scikit_learn(rows, tolerance):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 5, rows)
    codes = np.stack([y, 0 * y, y % 2], 1) + rng.normal(size=(rows, 3)) * [0.4, 1, 0.5]
    theirs = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(codes, y)
    ours = boost(torch.tensor(codes), torch.tensor(y), trees=20)
    np.testing.assert_allclose(ours.importance, theirs.feature_importances_, atol=tolerance)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.8, 0.2), (0.5, 0.1, 0.1, 0.3)])
def test_linear_svm_equals_linear_svc(shares):
    rng = np.random.default_rng(0)
    y = rng.choice(len(shares), 2_000, p=shares)
    x = 0.7 * y + rng.normal(size=len(y))
    theirs = LinearSVC(C=0.01, class_weight="balanced", dual=False, tol=1e-10, max_iter=10_000).fit(
        x[:, None], y
    )
    slope, offset = linear_svm(x, y)
    # LinearSVC has a single line for two classes.
    lines = slice(1, None) if len(shares) == 2 else slice(None)
    np.testing.assert_allclose(slope[lines], theirs.coef_[:, 0], atol=1e-5)
    np.testing.assert_allclose(offset[lines], theirs.intercept_, atol=1e-5)


def test_discrete_sap_equals_linear_svc_accuracy():
    codes = noisy()
    result = sap(codes, FACTORS, learn=400, test=200, seed=3)
    rows, others = split_train_test(list(FACTORS.T), 400, 200, 3)
    assert not set(rows) & set(others)
    gaps = []
    for y in FACTORS.T:
        machines = [
            LinearSVC(C=0.01, class_weight="balanced").fit(z[rows, None], y[rows]) for z in codes.T
        ]
        scores = [
            m.score(z[others, None], y[others]) for m, z in zip(machines, codes.T, strict=True)
        ]
        gaps.append(sorted(scores)[-1] - sorted(scores)[-2])
    # LinearSVC stops early, so two of 200 predictions may differ.
    assert result.per_factor == pytest.approx(gaps, abs=0.011)


def test_continuous_sap_is_the_gap_of_squared_correlations():
    codes, y = noisy(), FACTORS + 0.25
    ordered = [sorted(np.corrcoef(z, column)[0, 1] ** 2 for z in codes.T) for column in y.T]
    assert sap(codes, y, continuous=True).per_factor == pytest.approx(
        [s[-1] - s[-2] for s in ordered]
    )


def test_classifier_equals_logistic_regression():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 500)
    x = np.eye(3)[y] @ rng.normal(size=(3, 4)) + rng.normal(size=(500, 4))
    theirs = LogisticRegression(tol=1e-10, max_iter=10_000).fit(x, y)
    weight, offset = logistic_regression(x, y, 3)
    np.testing.assert_allclose(weight.T, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(
        offset - offset.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-5
    )


# Plain definitions


def test_votes_and_points_equal_their_definitions():
    codes, rng = noisy(), np.random.default_rng(9)
    votes, points, factors = np.zeros((5, 3)), [], rng.integers(3, size=3_000)
    for k in factors:
        same = [np.flatnonzero(FACTORS[:, k] == v) for v in range(GRID[:, k].max() + 1)]
        batch = codes[rng.choice(same[FACTORS[rng.integers(600), k]], 3)]
        votes[np.argmin(batch.var(0) / codes.var(0)), k] += 1
        first = rng.integers(600, size=3)
        second = [rng.choice(same[FACTORS[i, k]]) for i in first]
        points.append(np.abs(codes[first] - codes[second]).mean(0))
    expected = votes.max(1).sum() / 3_000
    assert 0.4 < expected < 0.95  # small batches, for a score that is not perfect
    assert factor_vae_score(codes, FACTORS, batch=3).score == pytest.approx(expected, abs=0.03)
    learnt = LogisticRegression().fit(points[:2_000], factors[:2_000])
    expected = learnt.score(points[2_000:], factors[2_000:])
    assert 0.4 < expected < 0.95
    assert beta_vae_score(codes, FACTORS, batch=3, learn=2_000).score == pytest.approx(
        expected, abs=0.03
    )


def test_partners_are_uniform_among_equal_labels():
    labels = np.array([2, 0, 1, 0, 2, 0])
    partners = draw_partners(labels, np.repeat([0, 1, 2], 3_000), np.random.default_rng(0)).reshape(
        3, 3_000
    )
    counts = np.stack([np.bincount(row, minlength=6) for row in partners]) / 3_000
    expected = [[1 / 2, 0, 0, 0, 1 / 2, 0], [0, 1 / 3, 0, 1 / 3, 0, 1 / 3], [0, 0, 1, 0, 0, 0]]
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_modularity_equals_its_definition():
    codes, scores = noisy(), []
    for z in codes.T:
        bins = np.digitize(z, np.histogram(z, 20)[1][:-1])
        squares = sorted(mutual_info_score(y, bins) ** 2 for y in FACTORS.T)
        scores.append(1 - sum(squares[:-1]) / (2 * squares[-1]))
    assert modularity(codes, FACTORS).per_latent == pytest.approx(scores, abs=1e-9)


# Invariances


@pytest.mark.parametrize("name", SCORES)
def test_scores_ignore_latent_order_sign_and_value_names(name):
    score, codes = SCORES[name], noisy()
    # Trees resolve ties at random, and a sign change reverses the quantiles.
    expected = pytest.approx(main_score(score(codes, FACTORS)), abs=0.03 if name == "dci" else 1e-9)
    assert main_score(score(codes[:, [3, 0, 4, 2, 1]], FACTORS)) == expected
    assert main_score(score(codes * [1, -1, -1, 1, -1], FACTORS)) == expected
    assert main_score(score(codes, FACTORS * [7, 2, 3] + 100)) == expected


def test_dci_depends_only_on_ranks():
    codes = noisy()
    assert dci(np.exp(codes), FACTORS).importance == dci(codes, FACTORS).importance


@pytest.mark.parametrize("name", SCORES)
def test_arrays_and_tensors_give_equal_results(name):
    codes = noisy()
    assert SCORES[name](
        torch.from_numpy(codes).requires_grad_(), torch.from_numpy(FACTORS)
    ) == SCORES[name](codes, FACTORS)


@pytest.mark.parametrize("name", [name for name in SCORES if name != "modularity"])
def test_the_seed_changes_the_result(name):
    assert SCORES[name](noisy(), FACTORS, seed=1) != SCORES[name](noisy(), FACTORS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SCORES)
def test_gpu_and_cpu_agree(name):
    there = main_score(
        SCORES[name](torch.from_numpy(noisy()).cuda(), torch.from_numpy(FACTORS).cuda())
    )
    assert there == pytest.approx(
        main_score(SCORES[name](noisy(), FACTORS)), abs=0.02 if name == "dci" else 1e-9
    )


# Errors


def with_nan(values):
    return np.where(np.arange(values.size).reshape(values.shape) == 7, np.nan, values)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(
    ("change_codes", "change_factors", "message"),
    [
        (with_nan, None, "codes must be finite, got 1 values"),
        (lambda z: z[:, 0], None, r"codes .*got shape \(600,\)"),
        (lambda z: z[:, :1], None, "at least 2 latents, got 1"),
        (None, lambda y: y[:-1], "600, got 599"),
        (None, lambda y: y * [1, 0, 1] + 4, r"factor 1 is constant \(4\)"),
        (None, lambda y: y + 0.5, "factor 0 .*integer.* got .*5;"),
        (None, with_nan, "has 1 values that are not finite"),
        (lambda z: z[:1], lambda y: y[:1], "at least 2 examples, got 1"),
        (None, lambda y: y.T, "600, got 3; .*transpose"),
        (None, lambda y: np.where(y == 1, None, y), "factor 0 has no value in row"),
        (
            None,
            lambda y: y + np.arange(len(y))[:, None],
            r"factor 0 has \d+ values in 600 examples",
        ),
    ],
)
def test_invalid_inputs_are_rejected(name, change_codes, change_factors, message):
    codes, factors = noisy(), FACTORS
    with pytest.raises(ValueError, match=message):
        SCORES[name](
            change_codes(codes) if change_codes else codes,
            change_factors(factors) if change_factors else factors,
        )


def test_factors_may_be_strings():
    words = np.array(["round", "flat", "square", "long", "grün"])[FACTORS]
    mixed = np.empty(FACTORS.shape, dtype=object)  # as pandas returns mixed columns
    mixed[:, 0], mixed[:, 1:] = words[:, 0], FACTORS[:, 1:]
    coded = np.char.encode(words, "utf-8")
    for score in (mig_histogram, sap, modularity):
        expected = score(noisy(), FACTORS).score
        for table in (mixed, words, words.tolist(), coded):
            assert score(noisy(), table).score == pytest.approx(expected)
    for missing in ("", "nan", None, math.nan):
        mixed[3, 0] = missing
        with pytest.raises(ValueError, match="factor 0 has no value in row 4"):
            mig_histogram(noisy(), mixed)
    with pytest.raises(ValueError, match="factors must be numbers, got"):
        sap(noisy(), words, continuous=True)


def test_too_few_rows_or_factors_are_rejected():
    few = noisy()[[0, 15]], FACTORS[[0, 29]]
    for score in (dci, sap):
        with pytest.raises(ValueError, match="factor 0 is constant in the 1 "):
            score(*few)
    for score in (factor_vae_score, beta_vae_score):
        with pytest.raises(ValueError, match="unique"):
            score(*few)
    for score in (dci, factor_vae_score, beta_vae_score, modularity):
        with pytest.raises(ValueError, match="at least 2 factors, got 1"):
            score(noisy(), FACTORS[:, :1])
    with pytest.raises(ValueError, match="values that are not finite"):
        sap(noisy(), with_nan(FACTORS), continuous=True)


@pytest.mark.parametrize("score", [factor_vae_score, beta_vae_score])
def test_few_examples_per_value_raise_a_warning(score):
    rng = np.random.default_rng(0)
    codes, factors = rng.normal(size=(20, 4)), rng.integers(0, 2, size=(20, 2))
    with pytest.warns(UserWarning, match="2 values has 10 examples"):
        # Random codes score above the chance level of 0.5.
        assert score(codes, factors, learn=1_000, test=500).score > 0.6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(np.tile(codes, (20, 1)), np.tile(factors, (20, 1)), learn=10, test=10)


def test_settings_are_checked():
    for score, setting in (
        (dci, "learn"),
        (sap, "test"),
        (factor_vae_score, "learn"),
        (beta_vae_score, "batch"),
    ):
        with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
            score(noisy(), FACTORS, **{setting: 0})
    with pytest.raises(ValueError, match="batch must be at least 2, got 1"):
        factor_vae_score(noisy(), FACTORS, batch=1)
    with pytest.raises(ValueError, match="threshold must be at least 0, got -1"):
        factor_vae_score(noisy(), FACTORS, threshold=-1)
    with pytest.raises(ValueError, match="importance must be finite and not negative"):
        importance_scores([[1, -1], [0, 1]])


# In an evaluation


def test_factors_and_their_names_are_read_from_one_file(tmp_path):
    file = tmp_path / "f.npz"
    np.savez(file, means=noisy(), factors=FACTORS, factor_names=["a", "b", "c"], unordered=["b"])
    found = read_factors(file, None, 600, None)
    assert (found.names, found.unordered, list(found.levels)) == (
        ("a", "b", "c"),
        ("b",),
        ["a", "c"],
    )
    np.testing.assert_array_equal(found.classes, FACTORS)
    assert read_factors(file, "c, b", 600, None).names == ("c", "b")
    assert read_factors(file, "factors", 600, None).names == found.names
    with pytest.raises(UserError, match="did you mean 'factors'"):
        read_factors(file, "facotrs", 600, None)
    for wrong in (
        {"factor_names": ["a", "b"]},
        {"factor_names": ["a", "b", "a"]},
        {"unordered": ["d"]},
    ):
        np.savez(file, **({"factors": FACTORS, "factor_names": ["a", "b", "c"]} | wrong))
        with pytest.raises(UserError, match=r"must name each column|not among the factors"):
            read_factors(file, None, 600, None)


class Examples:
    """Examples whose codes are themselves."""

    factor_names = ("shape", "scale", "x")
    unordered = ("shape",)
    split = "all"

    def __init__(self, count, **levels):
        self.factors, self.levels = FACTORS[:count], levels

    def __len__(self):
        return len(self.factors)

    def batch(self, indices):
        return torch.from_numpy(COPIED[indices.numpy()])


def evaluated(count, **levels):
    model = SimpleNamespace(
        latents=4, encode=lambda x: SimpleNamespace(mean=x, log_variance=torch.full_like(x, -6.0))
    )
    experiment = SimpleNamespace(data=Shapes2D())  # the paper's MIG skips its shape
    run = SimpleNamespace(
        examples=Examples(count, **levels),
        among=None,
        vae=model,
        experiment=experiment,
        device=torch.device("cpu"),
        thorough=False,
    )
    return score_run(run, DISENTANGLEMENT_SCORES)


def compute(means, log_variances, factors):
    return compute_scores(LabelledCodes(means, log_variances, factors), DISENTANGLEMENT_SCORES)


def test_evaluation_has_every_score_or_its_reason():
    whole = evaluated(600)
    assert whole["dci"]["disentanglement"] == pytest.approx(1, abs=1e-6)
    assert whole["factor_vae_score"]["score"] == whole["beta_vae_score"]["score"] == 1
    assert list(whole["sap"]["per_factor"]) == ["shape", "scale", "x"]
    assert whole["sap_continuous"]["per_factor"] == pytest.approx({"scale": 1, "x": 1})
    assert whole["modularity"]["score"] == pytest.approx(3 / 4)
    assert whole["ground_truth"]["names"] == ["shape", "scale", "x"]
    two = evaluated(2)  # only x varies
    assert two["ground_truth"]["constant"] == ["shape", "scale"]
    assert "at least 2 factors, got 1" in two["dci"]["skipped"]
    assert "constant in the 1 training" in two["sap"]["skipped"]
    # Quantities use the values of their classes, not the class numbers.
    levels = np.array([1.0, 10.0, 100.0])
    found = evaluated(600, scale=levels)["sap_continuous"]["per_factor"]["scale"]
    second, best = np.sort(
        [
            np.corrcoef(levels[FACTORS[:600, 1]], code)[0, 1] ** 2
            for code in COPIED[:600].T
            if code.std()
        ]
    )[-2:]
    assert found == pytest.approx(best - second)
    assert best < 0.9
    means = torch.from_numpy(COPIED)
    factors = Factors(Examples.factor_names, FACTORS)
    assert factors.select(np.arange(2)).names == ("x",)
    unordered = factors._replace(unordered=factors.names)
    kinds = compute(means, torch.full_like(means, -6.0), unordered)
    assert {name for name, score in kinds.items() if "skipped" in score} == {
        "mig_sampled",
        "sap_continuous",
    }
    wide = compute(means, torch.full_like(means, 77.0), factors)
    assert "[-60, 60], got 77" in wide["mig_sampled"]["skipped"]
    assert wide["dci"] == compute(means, None, factors)["dci"]


def test_scores_are_shown_with_their_split(capsys):
    found = evaluated(600)
    found["ground_truth"]["split"] = "train: 600 pictures"
    parts = {"split": "test: 60 pictures", "train": {"split": "train: 600 pictures"}}
    print_metrics("run", parts | found)
    shown = capsys.readouterr().out
    assert "by factor (train: 600 pictures)" in shown
    assert shown.index("ground truth") < shown.index(
        "split: train: 600 pictures", shown.index("ground truth")
    )


def test_thorough_scores_use_all_examples_on_a_cpu(tmp_path):
    rng = np.random.default_rng(0)
    factor = rng.integers(0, 4, (21_000, 1))
    means = np.hstack([factor - 1.5, rng.normal(size=(21_000, 1))])
    np.savez(
        tmp_path / "codes.npz", means=means, log_variances=np.full_like(means, -4.0), factors=factor
    )
    for thorough, examples, draws in ((False, "20,000", "1,000"), (True, "21,000", "10,000")):
        _, found = score_codes(tmp_path / "codes.npz", torch.device("cpu"), thorough=thorough)
        assert f"{examples} examples, at most {draws} draws" in found["mig_sampled"]["estimator"]
        assert found["mig_sampled"]["score"] == pytest.approx(1, abs=0.05)  # noise of 1,000 draws
