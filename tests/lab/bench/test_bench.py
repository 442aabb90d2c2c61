"""The benchmark of training speed, through the command line."""

import importlib.util
import json

import pytest
from command import controlvae

from controlvae.lab.config import PRESETS
from controlvae.lab.data.registry import load_dataset


def test_bench_writes_its_table_as_json(tmp_path):
    out = tmp_path / "bench.json"
    words = ["--models", "1", "--batches", "16", "--seconds", "0.1", "--device", "cpu"]
    done = controlvae("bench", "shapes2d-quick", *words, "--out", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = json.loads(out.read_text())["results"]
    pythae = importlib.util.find_spec("pythae") is not None
    others = ["plain eager loop", "pythae's trainer"] if pythae else ["plain eager loop"]
    assert [line["what"] for line in lines] == [*others, *["controlvae"] * 2]
    assert [(line["batch"], line["pixels"]) for line in lines[-2:]] == [(64, 32), (16, 32)]
    assert all(line["steps_per_second"] > 0 for line in lines)
    assert ("pip install 'controlvae[bench]'" in done.stdout) != pythae
    assert list(tmp_path.iterdir()) == [out]  # nothing left behind


def test_bench_counts_sentences_in_tokens(tmp_path):
    out, words = tmp_path / "bench.json", ["--models", "1", "--seconds", "0.1", "--device", "cpu"]
    done = controlvae("bench", "dialog-quick", *words, "--out", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout
    responses = load_dataset(PRESETS["dialog-quick"].data).lengths[:, 1].double()
    lines = json.loads(out.read_text())["results"]
    for line, what in zip(lines, ("plain eager loop", "controlvae"), strict=True):
        assert (line["what"], line["pixels"]) == (what, None)
        assert line["tokens"] == pytest.approx(responses.mean().item())
        assert line["steps_per_second"] > 0
