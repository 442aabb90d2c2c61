"""Tests of MIG and RMIG against closed forms, plain definitions and invariances."""

import importlib.util
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.metrics import mutual_info_score

from controlvae.metrics import mig_histogram, mig_sampled
from controlvae.metrics.disentanglement import dci, mig, rmig
from controlvae.metrics.disentanglement._information import histogram_bins
from controlvae.metrics.disentanglement._mig_cpu import add_cells
from controlvae.metrics.disentanglement._mig_sampling import add_tiles

Y1, Y2 = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
BOTH = np.stack([Y1, Y2], 1)
WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
GRID = np.stack(np.meshgrid(np.arange(2), np.arange(3), np.arange(5), indexing="ij"), -1).reshape(
    -1, 3
)


def h(p):
    """Return the entropy of a coin in nats."""
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def squash(x):
    return 1 / (1 + math.exp(-x))


def posteriors(copies=12, seed=0):
    """Return posteriors of a grid of three factors with five latents, one of them collapsed."""
    rng = np.random.default_rng(seed)
    factors = np.tile(GRID, (copies, 1))
    a, b, c = (factors / (GRID.max(0) + 1) * 3 - 1.2).T
    means = np.stack([a, 1.5 * b, c, b + 0.5 * c, 0 * a], 1) + 0.1 * rng.normal(
        size=(len(factors), 5)
    )
    return means, rng.uniform(-5, -1, means.shape) * [1, 1, 1, 1, 0.01], factors


# Closed forms: discrete codes


@pytest.mark.parametrize(
    ("codes", "gaps"),
    [
        ((Y1, Y2), (1, 1)),
        ((Y1, Y1), (0, 0)),
        ((2 * Y1 + Y2, 0 * Y1), (1, 1)),  # the known weakness: one latent for both factors
        ((Y1 ^ Y2, 0 * Y1), (0, 0)),
        ((Y1, Y1 & Y2), (0.6887218755, 0.3112781245)),
    ],
)
def test_histogram_mig_of_two_bits(codes, gaps):
    result = mig_histogram(np.stack(codes, 1).astype(float), BOTH)
    assert result.per_factor == pytest.approx(gaps, abs=1e-10)
    assert result.score == pytest.approx(np.mean(gaps), abs=1e-12)


def test_mutual_information_is_in_nats():
    result = mig_histogram(np.stack([Y1, Y1 & Y2], 1), BOTH)
    shared = h(1 / 4) - math.log(2) / 2
    assert shared == pytest.approx(0.2157615543)
    np.testing.assert_allclose(
        result.mutual_information, [[math.log(2), shared], [0, shared]], atol=1e-12
    )


def test_histogram_mig_of_a_factor_with_three_values():
    three, two = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1] * 3)
    result = mig_histogram(np.stack([three == 2, two], 1).astype(float), np.stack([three, two], 1))
    assert result.per_factor == pytest.approx([h(1 / 3) / math.log(3), 1], abs=1e-12)
    assert result.score == pytest.approx(0.7896900821, abs=1e-10)


def test_bins_are_those_of_disentanglement_lib():
    assert histogram_bins(np.array([0, 0.1, 0.2, 1]), 20).tolist() == [1, 3, 5, 20]
    neighbours = np.float32(0.5) + np.float32(6e-8) * np.arange(4, dtype=np.float32)
    assert histogram_bins(neighbours.astype(np.float64) * 1e10, 20).tolist() == [1, 7, 14, 20]
    # Adjacent floats are too close for bins.
    adjacent = np.float64(0.5) + np.spacing(0.5) * np.arange(4)
    assert histogram_bins(adjacent, 20).tolist() == [1, 1, 1, 1]


# Closed forms: Gaussian posteriors


@pytest.mark.parametrize(
    ("a", "expected"), [(0.5, 0.16074722), (1, 0.48594415), (2, 0.91282229), (3, 0.99444671)]
)
def test_sampled_mig_of_a_binary_channel_with_gaussian_noise(a, expected):
    factor = np.repeat([0, 1], 8000)[:, None]
    means = np.hstack([a * (2.0 * factor - 1), 0.0 * factor])
    result = mig_sampled(means.astype(np.float32), np.zeros_like(means), factor)
    assert result.score == pytest.approx(expected, abs=0.02)


def rmig_of(*means, sigma=1.0, bins=100):
    """Return the RMIG of one binary factor if the means of each latent are ±m."""
    table = np.outer([-1.0, 1.0], means)
    return rmig(table, np.full_like(table, 2 * math.log(sigma)), [[0], [1]], bins=bins).score


def test_rmig_in_two_bins():
    assert rmig_of(2, 0, bins=2) == pytest.approx(1 - h(squash(8)) / math.log(2), abs=1e-12)
    assert rmig_of(2, 0, bins=2) == pytest.approx(0.9956456471, abs=1e-10)
    assert rmig_of(2, 1, bins=2) == pytest.approx(
        (h(squash(4)) - h(squash(8))) / math.log(2), abs=1e-12
    )
    assert rmig_of(2, 1, bins=2) == pytest.approx(0.1256249218, abs=1e-10)


@pytest.mark.parametrize(
    ("bins", "expected"),
    [
        (4, 0.5265291780),
        (20, 0.4852968975),
        (100, 0.4852548288),
        (200, 0.4852534778),
        (2000, 0.4852530314),
    ],
)
def test_rmig_of_a_binary_channel_with_gaussian_noise(bins, expected):
    assert rmig_of(1, 0, bins=bins) == pytest.approx(expected, abs=1e-10)


def test_rmig_assigns_narrow_or_distant_posteriors_to_one_bin():
    # 30 σ from the nearest centre.
    assert rmig_of(1.03, 0, sigma=1e-3) == pytest.approx(1, abs=1e-12)
    assert rmig_of(50, 0) == pytest.approx(1, abs=1e-12)  # out of range: the end bins
    assert rmig_of(0, 0) == pytest.approx(0, abs=1e-12)
    assert rmig_of(1.03, 0, sigma=1e-30) == pytest.approx(1, abs=1e-12)  # the variance has a floor


@pytest.mark.parametrize("sigma", [1e5, 1e13])
def test_rmig_of_very_wide_posteriors_is_zero(sigma):
    assert rmig_of(1, 0, sigma=sigma) == pytest.approx(0, abs=1e-5)


# Plain definitions


def reference_sampled(means, log_variances, factors, draws, seed):
    """Return the gaps by definition, with the draws of `mig_sampled`."""
    generator = torch.Generator().manual_seed(seed)
    sigma = np.exp(log_variances / 2)
    z = means + sigma * torch.randn(means.shape, generator=generator).numpy()

    def entropy(members):
        chosen = members[torch.randperm(len(members), generator=generator).numpy()[:draws]]
        log_q = [
            [
                logsumexp(norm.logpdf(z[s, j], means[members, j], sigma[members, j]))
                for j in range(means.shape[1])
            ]
            for s in chosen
        ]
        return math.log(len(members)) - np.mean(log_q, axis=0)

    marginal, gaps = entropy(np.arange(len(means))), []
    for y in factors.T:
        conditional = np.mean([entropy(np.flatnonzero(y == v)) for v in np.unique(y)], axis=0)
        second, first = np.maximum(np.sort(marginal - conditional)[-2:], 0)
        gaps.append((first - second) / math.log(len(np.unique(y))))
    return gaps


@pytest.mark.parametrize("draws", [50, 10_000])
def test_sampled_mig_equals_its_definition(draws):
    # Without 17 examples the values have unequal frequency but still equal weight.
    means, log_variances, factors = (part[:-17] for part in posteriors(6))
    result = mig_sampled(means, log_variances, factors, draws=draws, seed=3)
    assert result.per_factor == pytest.approx(
        reference_sampled(means, log_variances, factors, draws, 3), abs=1e-9
    )


def test_histogram_mig_equals_its_definition():
    codes, _, factors = posteriors()
    gaps = []
    for y in factors.T:
        bins = [np.digitize(c, np.histogram(c, 20)[1][:-1]) for c in codes.T]
        ordered = sorted(mutual_info_score(y, b) for b in bins)
        gaps.append((ordered[-1] - ordered[-2]) / mutual_info_score(y, y))
    assert mig_histogram(codes, factors).per_factor == pytest.approx(gaps, abs=1e-10)
    assert mig(codes, factors) == mig_histogram(codes, factors)


def reference_rmig(means, log_variances, factors, bins):
    edges = np.linspace(-4, 4, bins + 1)
    centres, sigma = (edges[1:] + edges[:-1]) / 2, np.sqrt(np.maximum(np.exp(log_variances), 1e-8))
    cells = np.zeros((*means.shape, bins))
    for n, j in np.ndindex(*means.shape):
        density = norm.pdf(centres, means[n, j], sigma[n, j])
        if density.max() < 1e-5:
            place = int(np.searchsorted(edges, means[n, j], side="right")) - 1
            cells[n, j, min(max(place, 0), bins - 1)] = 1
        else:
            cells[n, j] = density / density.sum()
    gaps = []
    for y in factors.T:
        p_y = np.unique(y, return_counts=True)[1] / len(y)
        # (values, latents, bins)
        joint = np.stack([cells[y == v].sum(0) / len(y) for v in np.unique(y)])
        product = p_y[:, None, None] * joint.sum(0)
        ratio = np.where(joint > 0, joint, 1) / np.where(joint > 0, product, 1)
        ordered = np.sort((joint * np.log(ratio)).sum((0, 2)))
        gaps.append((ordered[-1] - ordered[-2]) / -(p_y * np.log(p_y)).sum())
    return gaps


@pytest.mark.parametrize("bins", [7, 100])
def test_rmig_equals_its_definition(bins):
    means, log_variances, factors = posteriors()
    means[::7] *= 6  # some lie outside
    log_variances[::5] -= 9  # some fall between the centres
    log_variances[::50] -= 20  # below the floor
    # Unequal frequencies.
    means, log_variances, factors = (part[:-17] for part in (means, log_variances, factors))
    expected = reference_rmig(means, log_variances, factors, bins)
    assert rmig(means, log_variances, factors, bins=bins).per_factor == pytest.approx(
        expected, abs=1e-9
    )


# Invariances


# With tolerances: a permutation assigns other noise to the examples of the sampled estimator.
ESTIMATORS = {
    "histogram": (lambda means, log_variances, factors: mig_histogram(means, factors), 1e-9),
    "rmig": (rmig, 1e-9),
    "sampled": (mig_sampled, 0.05),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_mig_ignores_order_and_sign(name):
    estimate, tolerance = ESTIMATORS[name]
    means, log_variances, factors = posteriors(24)
    expected = pytest.approx(estimate(means, log_variances, factors).per_factor, abs=tolerance)
    latents, examples = np.array([3, 0, 4, 2, 1]), np.random.default_rng(1).permutation(len(means))
    assert estimate(means[:, latents], log_variances[:, latents], factors).per_factor == expected
    assert estimate(means * [1, -1, -1, 1, -1], log_variances, factors).per_factor == expected
    assert (
        estimate(means[examples], log_variances[examples], factors[examples]).per_factor == expected
    )
    assert estimate(means, log_variances, factors * [7, -2, 3] + 100).per_factor == expected


@pytest.mark.parametrize("name", ESTIMATORS)
def test_arrays_and_tensors_give_equal_results(name):
    estimate, _ = ESTIMATORS[name]
    given = posteriors()
    tensors = [torch.from_numpy(part) for part in given]
    tensors[0].requires_grad_()
    assert estimate(*tensors) == estimate(*given)


@pytest.mark.parametrize("estimate", [mig_sampled, rmig])
def test_float32_is_enough(estimate):
    means, log_variances, factors = posteriors(24)
    # Narrow posteriors far from zero.
    means = (means + 5).astype(np.float32)
    log_variances = (log_variances - 4).astype(np.float32)
    means -= 5 if estimate is rmig else 0
    single = estimate(means, log_variances, factors).mutual_information
    double = estimate(means.astype(float), log_variances.astype(float), factors).mutual_information
    np.testing.assert_allclose(single, double, atol=2e-5)


def test_sampled_mig_depends_only_on_its_seed():
    given = posteriors()
    assert mig_sampled(*given, draws=100) == mig_sampled(*given, draws=100)
    assert mig_sampled(*given, draws=100).score != mig_sampled(*given, draws=100, seed=1).score


def test_negative_information_counts_as_zero():
    rng = np.random.default_rng(0)
    means, factors = 0.01 * rng.normal(size=(60, 3)), np.arange(60)[:, None] % 2
    result = mig_sampled(means, np.zeros_like(means), factors, draws=10)
    first, second = sorted(result.mutual_information[0])[:-3:-1]
    assert min(result.mutual_information[0]) < 0
    assert result.score == pytest.approx((max(first, 0) - max(second, 0)) / math.log(2))


# Result, tiles and kernel


def test_result_names_estimator_and_factors():
    means, log_variances, factors = posteriors()
    names, shares = ("a", "b", "c"), []
    result = mig_sampled(
        means, log_variances, factors, draws=100, factor_names=names, progress=shares.append
    )
    assert list(result.per_factor) == ["a", "b", "c"]
    assert result.score == pytest.approx(np.mean(list(result.per_factor.values())))
    assert np.shape(result.mutual_information) == (3, 5)
    assert (
        result.estimator
        == "MIG by sampling (Chen et al. 2018), 360 examples, at most 100 draws per entropy"
    )
    assert shares == sorted(shares)
    assert len(shares) == 1 + 2 + 3 + 5
    assert shares[-1] == 1
    assert "20 bins" in mig_histogram(means, factors, factor_names=names).estimator
    assert "100 bins" in rmig(means, log_variances, factors, factor_names=names).estimator


def test_tiled_sum_equals_full_sum():
    z, scale, shift, peak = torch.randn(4, 2, 2500, dtype=torch.float64).unbind()
    z = z[:, :700]  # with 2500 encoders: three blocks of encoders, two of draws
    whole = torch.exp2(peak[:, None] - (z[:, :, None] * scale[:, None] + shift[:, None]) ** 2).sum(
        2
    )
    torch.testing.assert_close(add_tiles(z, scale, shift, peak), whole)


def test_merged_cells_approximate_the_full_sum():
    """Compare for used and unused latents, widths from 0.01 to 5, and three distinct codes."""
    rng = np.random.default_rng(0)
    few = rng.integers(0, 3, 20_000) - 1.0
    means = np.stack(
        [rng.uniform(-3, 3, 20_000), 0.01 * rng.normal(size=20_000), rng.normal(size=20_000), few]
    )
    widths = np.stack(
        [
            np.full(20_000, 0.02),
            1 + 0.01 * rng.normal(size=20_000),
            0.01 * 500 ** rng.random(20_000),
            np.full(20_000, 1e-3),
        ]
    )
    draws = rng.permutation(20_000)[:500]
    z = (means + widths * rng.normal(size=means.shape))[:, draws]
    scale = np.sqrt(0.5 / np.log(2)) / widths
    found = (
        add_cells(*map(torch.from_numpy, (z, scale, -scale * means, -np.log2(widths))))
        .log()
        .numpy()
    )
    for latent in range(4):
        terms = norm.logpdf(z[latent][:, None], means[latent], widths[latent])
        expected = logsumexp(terms, axis=1) + 0.5 * np.log(2 * np.pi)
        # The largest errors are far out, where few draws are. An entropy takes the mean.
        assert np.abs(found[latent] - expected).max() < 5e-3
        assert abs((found[latent] - expected).mean()) < 1e-5


KERNEL = """
import torch
from controlvae.metrics.disentanglement._mig_sampling import add_tiles
from controlvae.metrics.disentanglement._mig_kernel import add_densities
parts = [torch.randn(3, 150, generator=torch.Generator().manual_seed(i)) for i in range(4)]
z = parts[0][:, :70].contiguous()
ours, expected = add_densities(z, *parts[1:]), add_tiles(z, *parts[1:]).float()
torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernel_equals_tiles_in_the_triton_interpreter():
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], env=interpreted, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("estimate", [mig_sampled, rmig])
def test_gpu_and_cpu_agree(estimate):
    means, log_variances, factors = posteriors(24)
    given = means.astype(np.float32), log_variances.astype(np.float32), factors
    here, there = estimate(*given), estimate(*given, device="cuda")
    np.testing.assert_allclose(there.mutual_information, here.mutual_information, atol=1e-5)


def test_importing_metrics_loads_no_heavy_package():
    code = (
        "import sys, torch; before = set(sys.modules); import controlvae.metrics; "
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"scipy", "sklearn", "triton"}
    assert "controlvae.metrics.disentanglement._mig_kernel" not in done.stdout.split()


# Errors


def changed(part, change):
    """Return valid input with one part changed."""
    given = dict(zip(("means", "log_variances", "factors"), posteriors(), strict=True))
    return given | {part: change(given[part])}


def with_nan(values):
    return np.where(np.arange(values.size).reshape(values.shape) == 7, np.nan, values)


BAD = [
    ("means", with_nan, "(means|codes) must be finite, got 1 values"),
    ("means", lambda m: m[:, :1], "at least 2 latents, got 1"),
    ("means", lambda m: m[:, 0], r"must be \(examples, latents\).*got shape \(360,\)"),
    ("factors", lambda y: y[:-1], "360, got 359"),
    ("factors", lambda y: y[:, 0], r"factors must be \(examples, factors\), got shape \(360,\)"),
    ("factors", lambda y: y * [1, 0, 1] + 4, r"factor 1 is constant \(4\)"),
    ("factors", lambda y: y + 0.5, "factor 0 .*integer.* got .*5;"),
    ("factors", with_nan, "has 1 values that are not finite"),
]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(("part", "change", "message"), BAD)
def test_invalid_inputs_are_rejected(name, part, change, message):
    given = changed(part, change)
    if (
        part == "means"
        and name != "histogram"
        and given["means"].shape != given["log_variances"].shape
    ):
        given["log_variances"] = change(given["log_variances"])
    with pytest.raises(ValueError, match=message):
        ESTIMATORS[name][0](**given)


@pytest.mark.parametrize("estimate", [mig_sampled, rmig])
def test_posteriors_are_checked(estimate):
    with pytest.raises(ValueError, match=r"\(360, 5\), got \(360, 4\)"):
        estimate(**changed("log_variances", lambda v: v[:, :4]))
    with pytest.raises(ValueError, match="log_variances must be finite, got 1 values"):
        estimate(**changed("log_variances", with_nan))
    with pytest.raises(ValueError, match="3 different names, got"):
        estimate(*posteriors(), factor_names=["a", "b", "a"])


def test_settings_are_checked():
    means, log_variances, factors = posteriors()
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        mig_sampled(means, log_variances, factors, draws=0)
    with pytest.raises(ValueError, match=r"\[-60, 60\], got 70"):
        mig_sampled(means, 0 * log_variances - 70, factors)
    with pytest.raises(
        ValueError, match="standard deviations from 0, which float32 cannot resolve"
    ):
        mig_sampled(means.astype(np.float32), 0 * log_variances - 40, factors)
    with pytest.raises(ValueError, match=r"draws must be an integer.* got 100.0"):
        mig_sampled(means, log_variances, factors, draws=100.0)
    for estimate in (mig_histogram, lambda m, y, bins: rmig(m, log_variances, y, bins=bins)):
        with pytest.raises(ValueError, match="bins must be at least 2, got 1"):
            estimate(means, factors, bins=1)
        with pytest.raises(ValueError, match=r"bins must be an integer.* got 2.5"):
            estimate(means, factors, bins=2.5)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=WITHOUT_CUDA), "cuda:99", "abacus"])
def test_unavailable_device_is_rejected(device):
    means, log_variances, factors = posteriors()
    for score in (
        mig_sampled,
        rmig,
        lambda means, _, factors, device: dci(means, factors, device=device),
    ):
        with pytest.raises(ValueError, match=f"device '{device}' is not available"):
            score(means, log_variances, factors, device=device)


def test_sampled_mig_warns_of_unequal_frequencies():
    means, log_variances, _ = posteriors()
    rare = (np.arange(len(means)) % 50 == 0)[:, None]
    with pytest.warns(UserWarning, match="factor 0 has values of unequal frequency"):
        mig_sampled(means, log_variances, rare, draws=10)


def test_few_examples_and_means_outside_bins_are_reported():
    rng = np.random.default_rng(0)
    means, factors = rng.normal(size=(600, 2)), rng.integers(0, 40, size=(600, 1))
    means[:, 1] = 0
    for score in (mig_sampled, rmig, lambda means, _, factors: mig_histogram(means, factors)):
        with pytest.warns(UserWarning, match="40 values has 15 examples") as caught:
            noise = score(means, np.tile([-9.0, 0.0], (600, 1)), factors)
        assert caught[0].filename == __file__
        assert noise.score > 0.1  # random codes
        assert noise.entropies == pytest.approx([np.log(40)], abs=0.1)
    two = (factors > 19).astype(int)
    assert "100% of the means outside" in rmig(means + 50, np.zeros_like(means), two).estimator
    assert "outside" not in rmig(means, np.zeros_like(means), two).estimator


def test_masked_values_are_rejected_and_byte_orders_accepted():
    rng = np.random.default_rng(0)
    means, factors = rng.normal(size=(900, 2)), rng.integers(0, 2, size=(900, 2))
    with pytest.raises(ValueError, match="masked"):
        mig_histogram(np.ma.masked_greater(means, 1), factors)
    with pytest.raises(ValueError, match=r"within ±1e\+12"):
        mig_histogram(means * 1e300, factors)
    expected = rmig(means, np.zeros_like(means), factors).score
    for kind in (means.astype(">f8"), means.astype(np.longdouble)):
        assert rmig(kind, np.zeros_like(means), factors).score == expected
