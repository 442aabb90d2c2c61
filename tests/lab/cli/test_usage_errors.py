"""Wrong input of commands: one line on stderr, exit status 2, and no files."""

import os
import pickle

import pytest
from command import within

from controlvae.errors import UserError
from controlvae.lab.evaluation.dinov2_weights import load_dinov2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "table-mgi"], "did you mean 'table-mig'"),
        (["reproduce", "table-mig", "--only", "shapes2d-vae"], "has no preset 'shapes2d-vae'"),
        (["reproduce", "table-mig", "--no-train", "--method", "mine"], "NAME=FOLDER"),
        (["reproduce", "table-mig", "--no-train", "--method", "a|b=runs"], "got 'a|b'"),
        (["reproduce", "table-mig", "--no-train", "--method", "Control-FactorVAE=."], "is taken"),
        (["reproduce", "table-mig", "--no-train", "--runs", "nowhere"], "no folder nowhere"),
        (
            ["reproduce", "table-mig", "--no-train", "--only", "shapes2d-factor"],
            "--no-train trains nothing",
        ),
        (["report", ".", "--out", "page.pdf"], "page.pdf"),
        (["score", "codes.npz"], "no file codes.npz"),
        (["bench", "--models", "one"], "got 'one'"),
        (["bench", "--sizes", "48"], "size must be 64 or 32, got 48"),
        (["bench", "text-quick", "--sizes", "32"], "--sizes"),
        (["bench", "nonsense-of-a-name"], "nonsense-of-a-name"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(tmp_path, words, message):
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_old_option_is_accepted_with_a_notice(tmp_path):
    done = within("reproduce", "table-mig", "--no-train", "--beside", "mine", cwd=tmp_path)
    assert "is now called --method" in done.stderr
    assert "NAME=FOLDER" in done.stderr


def test_durations_without_a_unit_are_explained(tmp_path):
    done = within("train", "shapes2d-quik", "--time-limit", "9", cwd=tmp_path)
    assert "taken as seconds" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["train", "shapes2d-quick", "--devices", "999999999"],
        [
            "search",
            "shapes2d-quick",
            "--vary",
            "optimiser.rate=1e-4,1e-3",
            "--workers",
            "999999999",
        ],
    ],
)
def test_millions_of_processes_are_refused(tmp_path, words):
    done = within(*words, "--run", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "at most 1,024, got 999999999" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [pickle.dumps(os.system), b"PK\3\4aaaa", b"", b"text"])
def test_weights_that_are_none_are_refused_in_one_line(tmp_path, content):
    file = tmp_path / "weights.pth"
    file.write_bytes(content)
    with pytest.raises(UserError, match="does not hold published weights of DINOv2") as refusal:
        load_dinov2(file)
    assert len(str(refusal.value).splitlines()) == 1
    assert "PyTorch 2.6" not in str(refusal.value)


def test_a_pipe_as_codes_is_refused_with_a_reason(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = within("score", "pipe", cwd=tmp_path)
    assert done.returncode == 2
    assert "regular file" in done.stderr
