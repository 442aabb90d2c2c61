"""Metrics by name in `evaluate` and `score`: selection, optional metrics, UDR, written text."""

import json

import numpy as np
import pytest
import torch
from command import within
from reference_codes import FACTORS, dinov2_weights, model_cases
from safetensors.torch import save_file

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.api.train import start_training
from controlvae.lab.evaluation import feature_distances
from controlvae.lab.evaluation.dinov2_weights import load_dinov2
from controlvae.lab.evaluation.evaluate import measure_run
from controlvae.lab.evaluation.inception_weights import MissingWeightsError
from controlvae.lab.evaluation.metric import OPTIONAL, Selection
from controlvae.lab.evaluation.registry import GROUPS, find_metric
from controlvae.lab.evaluation.scores import DISENTANGLEMENT_SCORES
from controlvae.lab.evaluation.search_objective import find_objective
from controlvae.lab.evaluation.selection import SELECTABLE, select_metrics
from controlvae.lab.reports.page import write_report
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run
from controlvae.lab.training.runner import RunOptions
from controlvae.metrics import infomec, udr

CPU = ("--device", "cpu")


def train(folder, preset, *sets):
    options = RunOptions.parse("cpu")
    common = [
        "training.validate_every=0",
        "training.steps=3",
        "training.batch=8",
        "training.log_every=1",
        *sets,
    ]
    start_training(preset, common, run=folder, options=options)
    return load_run(RunFolder(folder))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a folder with two seeds of a small run over images with factors."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.integers(0, 256, (96, 32, 32, 3), np.uint8))
    rows = [f"{n % 3},{n // 3 % 2}" for n in range(96)]
    (folder / "table.csv").write_text("\n".join(["size,kind", *rows]))
    sets = [
        f'data=Images("{folder / "x.npy"}", held_out=0.25)',
        f"data.factors={folder / 'table.csv'}",
        "model=ImageVAE(3, (4, 4))",
        "control=Constant(0.5)",
        "training.validation=0",
    ]
    for seed in (0, 1):
        train(folder / "runs" / f"seed-{seed}", "cifar10-vae", *sets, f"training.seed={seed}")
    return folder


@pytest.fixture
def weights(tmp_path):
    tensors = {name: torch.from_numpy(values) for name, values in dinov2_weights().items()}
    save_file(tensors, tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


# Selection


def test_default_selection_leaves_out_what_needs_more():
    default = select_metrics(None)
    assert default.wants("infomec")
    assert default.wants("fid", "fd_dinov2")
    assert not any(default.wants(key) for key in OPTIONAL)
    named = select_metrics("infomec, lpips")
    assert [key for key in SELECTABLE if named.wants(key)] == ["lpips", "infomec"]
    everything = select_metrics(["all"])
    assert all(everything.wants(key) for key in SELECTABLE)
    assert everything.may_skip
    assert set(OPTIONAL) <= set(SELECTABLE)


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        ("infomek", None, "infomec"),
        (" , ", None, "names none"),
        (None, {"dino": "x"}, "dinov2"),
    ],
)
def test_unknown_names_are_refused(names, weights, message):
    with pytest.raises(UserError, match=message):
        select_metrics(names, weights)


def test_the_elbo_may_be_named_although_it_is_always_measured():
    selected = select_metrics("elbo")
    assert [key for key in SELECTABLE if selected.wants(key)] == ["elbo"]


def test_every_selectable_entry_is_shown_by_a_metric_or_is_text():
    shown = {metric.path.partition(".")[0] for group in GROUPS for metric in group.metrics}
    assert set(SELECTABLE) <= shown
    assert find_metric("infomec.infom").name == "InfoMEC, InfoM"
    assert find_metric("fid.reconstructions.score").name.startswith("rFID")


def test_a_search_takes_only_what_is_always_measured():
    assert find_objective("infomec").paths == ("infomec.infom",)
    with pytest.raises(UserError, match="dci_es"):
        find_objective("dci_es.explicitness")


# Runs over images


def test_named_metrics_are_measured_and_the_others_kept(images):
    run = images / "runs" / "seed-0"
    first = "infomec,explicitness,sap,likeness"
    before = lab.evaluate(run, device="cpu", metrics=first, progress=False)
    assert "total_correlation" in before
    assert before["infomec"]["infom"] <= 1
    assert before["explicitness"]["per_factor"].keys() == {"size", "kind"}
    assert "dci_es" not in before
    after = lab.evaluate(run, device="cpu", metrics="ms_ssim,mig_sup,dci_es", progress=False)
    assert (after["ms_ssim"]["scales"], after["ms_ssim"]["examples"]) == (2, 24)
    assert 0 < after["ms_ssim"]["score"] <= 1
    assert after["dci_es"]["size"] == 2 / 3
    for key in ("sap", "infomec", "likeness"):
        assert after[key] == before[key]
    assert "dci" not in after
    # Without names everything is measured again, and optional results are kept.
    again = lab.evaluate(run, device="cpu", iwae=0, progress=False)
    assert "score" in again["rmig"]
    for key in ("ms_ssim", "infomec", "mig_sup"):
        assert again[key] == after[key]
    page = write_report([RunFolder(run)], run / "page.html").read_text()
    for words in ("MS-SSIM", "InfoMEC, InfoM", "DCI-ES, explicitness", "2 scales, of five"):
        assert words in page


def test_distances_of_dinov2_features_need_the_users_file(images, weights):
    run = images / "runs" / "seed-1"
    with pytest.raises(UserError, match=r"--weights dinov2=FILE"):
        lab.evaluate(run, device="cpu", metrics="fd_dinov2", progress=False)
    found = lab.evaluate(
        run,
        device="cpu",
        metrics=["fd_dinov2", "prdc_dinov2"],
        weights={"dinov2": weights},
        progress=False,
    )
    assert found["fd_dinov2"]["samples"]["score"] > 0
    assert found["fd_dinov2"]["pictures"] == 24
    assert "small.safetensors" in found["fd_dinov2"]["extractor"]
    assert 0 <= found["prdc_dinov2"]["samples"]["recall"] <= 1
    page = write_report([RunFolder(run)], run / "page.html")
    assert "FD-DINOv2" not in page.read_text()  # the table needs `likeness` too
    everything = lab.evaluate(run, device="cpu", metrics="all", iwae=0, progress=False)
    assert everything["fd_dinov2"] == found["fd_dinov2"]
    assert "FD-DINOv2, samples" in write_report([RunFolder(run)], run / "page.html").read_text()
    assert "skipped" in everything["lpips"] or everything["lpips"]["score"] >= 0


def test_precision_and_recall_come_with_fid(images, monkeypatch):
    class Pixels(torch.nn.Module):
        extractor = "pixels"

        def forward(self, x):
            return x.flatten(1)[:, ::64]

    monkeypatch.setattr(feature_distances, "load_inception", lambda root: Pixels())
    run = load_run(RunFolder(images / "runs" / "seed-0"))
    selection = Selection(frozenset({"fid", "prdc"}))
    metrics = measure_run(run, 24, fid_images=24, importance_samples=0, selection=selection)
    samples = metrics["prdc"]["samples"]  # all grey, in the middle of noise
    assert (samples["precision"], samples["recall"]) == (1, 0)
    assert metrics["prdc"]["reconstructions"]["estimator"].startswith("5 neighbours")
    few = measure_run(run, 24, fid_images=4, importance_samples=0, selection=selection)
    assert "more than 5" in few["prdc"]["skipped"]
    assert few["fid"]["pictures"] == 4


def test_udr_of_a_folder_of_runs(images):
    done = within("evaluate", "runs", "--metrics", "udr", *CPU, cwd=images)
    assert done.returncode == 0, done.stderr
    entries = [
        json.loads((images / "runs" / f"seed-{seed}" / "metrics.json").read_text())["udr"]
        for seed in (0, 1)
    ]
    assert all(0 <= entry["score"] <= 1 for entry in entries)
    assert [len(entry["agreement"]) for entry in entries] == [1, 1]
    alone = within("evaluate", "runs/seed-0", "--metrics", "udr", *CPU, cwd=images)
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "folder of runs" in alone.stderr


def test_metrics_that_do_not_apply_are_named(images):
    done = within("evaluate", "runs/seed-1", "--metrics", "mauve,mig_sup", *CPU, cwd=images)
    assert done.returncode == 0
    assert "not applicable to its data: mauve" in done.stderr


# Files of codes


def test_codes_are_scored_by_name_and_compared(tmp_path):
    codes, _ = model_cases()
    spread = [np.log(np.full(z.shape, 0.04)) for z in codes]
    for number, (z, s) in enumerate(zip(codes, spread, strict=True)):
        np.savez(tmp_path / f"{number}.npz", means=z, log_variances=s, factors=FACTORS)
    files = [f"{number}.npz" for number in range(4)]
    done = within("score", *files, "--metrics", "udr,infomec", *CPU, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = [json.loads((tmp_path / f"{n}.scores.json").read_text()) for n in range(4)]
    found = [each["udr"]["score"] for each in scores]
    assert found == pytest.approx(
        udr([z[np.random.default_rng(0).permutation(1440)] for z in codes]).scores, abs=1e-6
    )
    assert min(found[:2]) > max(found[2:])
    assert scores[0]["infomec"]["infom"] == pytest.approx(
        infomec(codes[0], FACTORS).infom, abs=0.01
    )
    assert "dci" not in scores[0]
    refused = within("score", "0.npz", "--metrics", "fid", *CPU, cwd=tmp_path)
    assert refused.returncode == 2
    assert "no metric 'fid'" in refused.stderr


# Networks


def test_unusable_weights_are_refused_in_one_line(tmp_path):
    with pytest.raises(MissingWeightsError, match="dinov2_vitl14_pretrain"):
        load_dinov2(root=tmp_path)
    with pytest.raises(MissingWeightsError, match="no file"):
        load_dinov2(tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("no weights")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    for name in ("text.pth", "other.safetensors"):
        with pytest.raises(UserError, match="published weights of DINOv2") as failed:
            load_dinov2(tmp_path / name)
        assert "\n" not in str(failed.value)


def test_published_files_are_found_in_the_data_folder(tmp_path):
    tensors = {name: torch.from_numpy(values) for name, values in dinov2_weights().items()}
    torch.save(tensors, tmp_path / "dinov2_vits14_pretrain.pth")
    network = load_dinov2(root=tmp_path)
    assert "dinov2_vits14_pretrain.pth, SHA-256" in network.extractor
    assert network(torch.rand(1, 3, 16, 16)).shape == (1, 64)


@pytest.mark.parametrize("value", ["dinov2", "=x", "dinov2="])
def test_weights_are_pairs(value, images):
    done = within("evaluate", "runs/seed-0", "--weights", value, *CPU, cwd=images)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "NAME=PATH" in done.stderr


# Written text


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    return train(
        tmp_path_factory.mktemp("text") / "run",
        "text-quick",
        "data.sentences=60",
        "training.validation=0",
    )


def test_corpus_bleu_of_reconstructions(sentences):
    pytest.importorskip("sacrebleu")
    metrics = measure_run(sentences, 20, selection=select_metrics("corpus_bleu"))
    assert 0 <= metrics["corpus_bleu"]["score"] <= 100
    assert "reconstructions" in metrics["corpus_bleu"]["of"]
    assert "text" not in metrics


def test_mauve_needs_a_folder_and_takes_a_language_model(sentences, tmp_path):
    pytest.importorskip("mauve")
    transformers = pytest.importorskip("transformers")
    with pytest.raises(UserError, match="mauve=FOLDER"):
        measure_run(sentences, 20, selection=select_metrics("mauve"))
    words = {"[UNK]": 0, "the": 1, "a": 2}
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.GPT2Config(vocab_size=3, n_positions=64, n_embd=8, n_layer=1, n_head=2)
    folder = tmp_path / "model"
    transformers.GPT2Model(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]").save_pretrained(
        folder
    )
    selection = select_metrics("mauve", {"mauve": str(folder)})
    found = measure_run(sentences, 20, selection=selection)["mauve"]
    assert 0 < found["score"] <= 1
    assert found["extractor"] == "last hidden state of model"
    with pytest.raises(UserError, match="no folder"):
        measure_run(sentences, 20, selection=select_metrics("mauve", {"mauve": "nowhere"}))


def test_every_score_has_a_key_of_its_own():
    keys = [score.key for score in DISENTANGLEMENT_SCORES]
    assert len(set(keys)) == len(keys)
