"""Statistics over seeds, compared with SciPy."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from controlvae.lab.evaluation.statistics import compare_means, holm_correction


def permutation_p_value(first, second, **options):
    def distance(ones, others):
        return abs(np.mean(ones) - np.mean(others))

    samples = (first, second)
    return stats.permutation_test(samples, distance, alternative="greater", **options).pvalue


def test_difference_has_standard_error_and_exact_p_value():
    first, second = [0.61, 0.58, 0.6, 0.55], [0.5, 0.56, 0.53]
    difference = compare_means(first, second)
    assert difference.mean == pytest.approx(np.mean(first) - np.mean(second))
    error = math.sqrt(np.var(first, ddof=1) / 4 + np.var(second, ddof=1) / 3)
    assert difference.error == pytest.approx(error)
    expected = permutation_p_value(first, second, n_resamples=np.inf)
    assert difference.p_value == pytest.approx(expected)


def test_many_seeds_are_compared_by_random_permutations():
    first, second = np.arange(12), np.arange(12) + 4
    expected = permutation_p_value(first, second, n_resamples=20_000, rng=1)
    assert compare_means(first, second).p_value == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1.0], [2.0, 3.0]), ([1.0, math.inf], [1.0, 2.0])]
)
def test_too_few_or_infinite_scores_are_not_compared(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare_means(first, second) is None


def test_holm_correction_matches_worked_example():
    corrected = holm_correction([0.01, 0.04, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("seed", range(5))
def test_holm_correction_follows_its_definition(seed):
    p_values = np.random.default_rng(seed).uniform(0, 0.5, 6).tolist()
    for p_value, corrected in zip(p_values, holm_correction(p_values), strict=True):
        # Holm (1979): the largest of (m - j + 1) p_(j) over all p_(j) up to this one, at most 1.
        smaller = sorted(other for other in p_values if other <= p_value)
        scaled = [(len(p_values) - rank) * other for rank, other in enumerate(smaller)]
        assert corrected == pytest.approx(min(1.0, max(scaled)))


def test_holm_correction_leaves_a_single_p_value_alone():
    assert holm_correction([0.04]) == [0.04]
    assert holm_correction([]) == []
    assert holm_correction([0.9, 0.8]) == [1.0, 1.0]
