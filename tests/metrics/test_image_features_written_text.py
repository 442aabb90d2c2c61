"""Tests of precision, recall, density, coverage, DINOv2, MS-SSIM, LPIPS, corpus BLEU and MAUVE.

References are closed forms, the packages pytorch-msssim, lpips, sacrebleu and mauve-text, Pillow, and
numbers of the package prdc and of the released DINOv2 on the same arrays (`references.json`).
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_codes import DINOV2_KINDS, dinov2_inputs, dinov2_weights, feature_cases

from controlvae.metrics import (
    corpus_bleu,
    fid,
    gaussian_total_correlation,
    lpips,
    mauve,
    ms_ssim,
    prdc,
    ssim,
)
from controlvae.metrics._packages import require
from controlvae.metrics.image.dinov2 import DINOv2
from controlvae.metrics.image.lpips import WEIGHTS
from controlvae.metrics.image.ms_ssim import max_scales

REFERENCES = json.loads((Path(__file__).parent / "references.json").read_text(encoding="utf-8"))
FEATURES = feature_cases()
NAMES = ("precision", "recall", "density", "coverage")


# Precision, recall, density and coverage


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("neighbours", [1, 3, 5])
@pytest.mark.parametrize("name", FEATURES)
def test_prdc_equals_the_released_code(name, neighbours, dtype):
    real, generated = (torch.from_numpy(table).to(dtype) for table in FEATURES[name])
    scores = prdc(real, generated, neighbours=neighbours)
    theirs = REFERENCES["prdc"][name][str(neighbours)]
    assert {key: getattr(scores, key) for key in NAMES} == pytest.approx(theirs, abs=1e-12)


def test_blocks_of_any_size_give_equal_scores(monkeypatch):
    module = __import__("sys").modules["controlvae.metrics.image.prdc"]
    real, generated = FEATURES["fewer"]
    whole = prdc(real, generated)
    for limit in (1, 1_000, 12_345):
        monkeypatch.setattr(module, "_MAX_DISTANCES", {"cpu": limit, "cuda": limit})
        assert prdc(real, generated) == whole


def test_equal_sets_and_far_sets():
    real, _ = FEATURES["same law"]
    same = prdc(real, real)
    assert (same.precision, same.recall, same.coverage) == (1, 1, 1)
    far = prdc(real, real + 1_000)
    assert (far.precision, far.recall, far.density, far.coverage) == (0, 0, 0, 0)
    # Features far from the origin lose no digits.
    shifted = prdc(real.astype(np.float32) + 100, real.astype(np.float32) + 100)
    assert shifted.density == pytest.approx(same.density, abs=0.01)


def test_a_single_mode_has_precision_but_no_recall():
    scores = prdc(*FEATURES["one mode"])
    assert scores.precision > 0.8
    assert scores.recall < 0.4
    assert scores.coverage < 0.4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_and_cpu_agree():
    real, generated = (torch.from_numpy(table).float() for table in FEATURES["shifted"])
    there = prdc(real.cuda(), generated.cuda())
    assert there.density == pytest.approx(prdc(real, generated).density, abs=1e-3)


@pytest.mark.parametrize(
    ("real", "generated", "message"),
    [
        (np.ones((4, 2)), np.ones((9, 2)), "features_real .* more than 5"),
        (np.ones((9, 2)), np.full((9, 2), np.nan), "features_generated must be finite"),
        (np.ones((9, 2)), np.ones((9, 3)), "equally many features"),
    ],
)
def test_unusable_features_are_refused(real, generated, message):
    with pytest.raises(ValueError, match=message):
        prdc(real, generated)


# DINOv2


@pytest.fixture(scope="module")
def small_dinov2():
    return {name: torch.from_numpy(values) for name, values in dinov2_weights().items()}


@pytest.mark.parametrize("kind", DINOV2_KINDS)
def test_dinov2_equals_the_released_code(kind):
    tensors = {k: torch.from_numpy(v) for k, v in dinov2_weights(**DINOV2_KINDS[kind]).items()}
    features = DINOv2(tensors).features(torch.from_numpy(dinov2_inputs()))
    expected = torch.tensor(REFERENCES["dinov2"][kind])
    torch.testing.assert_close(features, expected, atol=2e-5, rtol=1e-5)


def test_dinov2_takes_images_of_any_size_and_its_features_give_a_distance(small_dinov2):
    network = DINOv2(small_dinov2)
    images = torch.rand(8, 1, 20, 24)
    features = network(images)
    assert features.shape == (8, 64)
    rounded = (images * 255).round()
    torch.testing.assert_close(features, network(rounded.byte()))
    torch.testing.assert_close(features, network((rounded / 255).expand(-1, 3, -1, -1)))
    assert fid(features, network(torch.rand(8, 1, 20, 24))).score > 0
    with pytest.raises(ValueError, match="1 or 3"):
        network(torch.rand(2, 4, 20, 20))


@pytest.mark.parametrize("side", [32, 100, 300])
def test_dinov2_resizes_as_pillow_does(small_dinov2, side, monkeypatch):
    from PIL import Image

    network = DINOv2(small_dinov2)
    seen = []
    monkeypatch.setattr(network, "features", lambda x: seen.append(x) or x)
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    network(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    resized = Image.fromarray(pixels).resize((224, 224), Image.Resampling.BICUBIC)
    mean, sd = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    ours = (seen[0][0].permute(1, 2, 0).numpy() * sd + mean) * 255
    difference = np.abs(ours - np.asarray(resized))
    assert difference.max() <= 2.01  # two roundings
    assert difference.mean() < 0.01


# MS-SSIM and LPIPS


def image_pairs(side, count=3, channels=3):
    generator = torch.Generator().manual_seed(side)
    noise = torch.rand(count, channels, side + 6, side + 6, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(noise, 7, 1)
    return smooth, (smooth + 0.05 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1)


def test_ms_ssim_equals_another_package():
    package = pytest.importorskip("pytorch_msssim")
    a, b = image_pairs(176, 2, 1)
    theirs = package.ms_ssim(a, b, data_range=1.0, size_average=False)
    # Theirs leaves out windows that reach over the border.
    torch.testing.assert_close(ms_ssim(a, b).float(), theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("side", "scales"), [(11, 1), (21, 1), (22, 2), (44, 3), (98, 3), (99, 4), (176, 5)]
)
def test_images_have_as_many_scales_as_fit(side, scales):
    assert max_scales(side) == scales
    a, b = image_pairs(side, 2, 1)
    torch.testing.assert_close(ms_ssim(a, b), ms_ssim(a, b, scales=scales))
    if scales < 5:
        with pytest.raises(ValueError, match=f"allow {scales} scales"):
            ms_ssim(a, b, scales=scales + 1)


def test_ms_ssim_of_equal_images_and_of_one_pair():
    a, b = image_pairs(64)
    assert ms_ssim(a, a).tolist() == pytest.approx([1, 1, 1])
    assert ms_ssim(a[:1], b[:1])[0] == pytest.approx(ms_ssim(a, b)[0].item())
    assert ms_ssim(a, b, scales=1).mean() == pytest.approx(ssim(a, b).mean().item(), abs=0.02)
    with pytest.raises(ValueError, match="at least 11"):
        ms_ssim(a[..., :8, :8], b[..., :8, :8])


def test_lpips_names_the_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    a, b = image_pairs(64)
    with pytest.raises(FileNotFoundError) as failed:
        lpips(a, b)
    message = str(failed.value)
    assert "curl" in message
    assert str(tmp_path / "hub" / "checkpoints" / WEIGHTS["alex"]) in message
    assert "\n" not in message
    with pytest.raises(ValueError, match="alex, vgg, squeeze"):
        lpips(a, b, network="resnet")
    with pytest.raises(ValueError, match="32 x 32"):
        lpips(a[..., :16, :16], b[..., :16, :16])


def test_lpips_equals_its_authors_package(tmp_path, monkeypatch):
    """Random weights of the classifier: both packages read the same file of torch's cache."""
    try:
        import lpips as package
        from torchvision.models import alexnet
    except (ImportError, RuntimeError) as error:  # torchvision of another build of torch
        pytest.skip(str(error))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(alexnet(weights=None).state_dict(), folder / WEIGHTS["alex"])
    a, b = image_pairs(64)
    with torch.no_grad():
        theirs = package.LPIPS(net="alex", verbose=False)(2 * a - 1, 2 * b - 1).flatten()
    torch.testing.assert_close(lpips(a, b), theirs)
    assert lpips(a, a).tolist() == [0, 0, 0]


def test_a_missing_package_is_one_line_with_its_command():
    with pytest.raises(ModuleNotFoundError) as failed:
        require("LPIPS", "controlvae_missing", "torchmetrics torchvision")
    assert str(failed.value) == (
        "LPIPS needs torchmetrics torchvision: pip install torchmetrics torchvision"
    )


# Text


TEXTS = ["the cat sat on the mat", "a dog barked at the moon", "it rains on the mat"]
KNOWN = [
    ["the cat sat on a mat", "a cat is on the mat"],
    ["a dog barked at night", "the dog barked at the moon"],
    ["it rains on the mat again", "rain"],
]


def test_corpus_bleu_equals_the_package_and_nltk():
    pytest.importorskip("sacrebleu")
    from nltk.translate.bleu_score import corpus_bleu as reference

    result = corpus_bleu(TEXTS, KNOWN)
    theirs = 100 * reference(
        [[k.split() for k in own] for own in KNOWN], [text.split() for text in TEXTS]
    )
    assert result.score == pytest.approx(theirs, abs=1e-9)
    assert "tok:none" in result.signature
    words = [text.split() for text in TEXTS]
    assert corpus_bleu(words, KNOWN) == result
    assert corpus_bleu(TEXTS, [[text] for text in TEXTS]).score == pytest.approx(100)
    for references in (KNOWN[:2], [[], [], []], [KNOWN[0], KNOWN[1], KNOWN[2][:1]]):
        with pytest.raises(ValueError, match="equally many references"):
            corpus_bleu(TEXTS, references)
    with pytest.raises(ValueError, match="no tokeniser"):
        corpus_bleu(TEXTS, KNOWN, tokenize="mine")


def test_mauve_equals_its_package():
    package = pytest.importorskip("mauve")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, 8))
    theirs = package.compute_mauve(p_features=a, q_features=b + 0.5, num_buckets=10, verbose=False)
    ours = mauve(a, b + 0.5, buckets=10)
    assert ours.score == pytest.approx(theirs.mauve, rel=1e-4)
    assert mauve(a, b, buckets=10).score > ours.score > mauve(a, b + 3, buckets=10).score
    with pytest.raises(ValueError, match="equally many features"):
        mauve(a, b[:, :4])


# Total correlation


@pytest.mark.parametrize(("count", "repetitions"), [(64, 1_500), (512, 400)])
@pytest.mark.parametrize(("latents", "rho"), [(3, 0.4), (10, 0.3), (10, 0.9)])
def test_gaussian_total_correlation_is_unbiased(count, repetitions, latents, rho):
    rng = np.random.default_rng(0)
    covariance = (1 - rho) * np.eye(latents) + rho
    root = np.linalg.cholesky(covariance)
    truth = -0.5 * np.linalg.slogdet(covariance)[1]
    values = np.array(
        [
            gaussian_total_correlation(5 * rng.normal(size=(count, latents)) @ root.T + 3)
            for _ in range(repetitions)
        ]
    )
    error = values.std() / math.sqrt(repetitions)
    assert abs(values.mean() - truth) < 3.5 * error
    assert error < 0.02


def test_latents_that_do_not_vary_or_repeat():
    z = np.random.default_rng(0).normal(size=(100, 2))
    expected = gaussian_total_correlation(z)
    assert gaussian_total_correlation(np.hstack([z, np.ones((100, 1))])) == pytest.approx(expected)
    assert gaussian_total_correlation(np.hstack([z[:, :1], np.zeros((100, 1))])) == 0
    assert gaussian_total_correlation(np.hstack([z, z])) > 10
    with pytest.raises(ValueError, match="more examples than latents"):
        gaussian_total_correlation(z.T)
