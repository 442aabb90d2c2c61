"""A short run of the fuzzer, every input that ever failed, and a grammar of settings.

`run.py` runs for as long as one likes.
"""

import gzip
import io
import os
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import commands
import pytest
import run
import targets
from hypothesis import given, settings
from hypothesis import strategies as st

from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.config.serialization import from_dict, to_dict

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return run.prepare_runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_inputs_that_failed_once_are_refused_or_taken(path, request, monkeypatch):
    case = targets.Case.load(path.read_text())
    if case.target in ("run", "command"):
        monkeypatch.setattr(targets, "PREPARED", request.getfixturevalue("prepared"))
    status, detail = run.run_case(case)
    assert status in ("taken", "refused"), detail


def test_random_inputs_are_refused_or_taken(tmp_path):
    names = ["settings", "experiment", "images", "arrays", "factors", "text", "dialogs", "codes"]
    names += ["fit", "command"]
    seed = random.SystemRandom().randrange(1 << 40)  # other inputs every time; a finding is printed
    random.Random(seed).shuffle(names)  # a slow machine does not get to the last ones
    line = [sys.executable, run.__file__, "--minutes", "0.4", "--no-keep", "--first", str(seed)]
    done = subprocess.run(
        [*line, *(word for name in names for word in ("--target", name))],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": run._search_path()},
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert "0 findings" in done.stdout


WORDS = st.sampled_from(["PI", "Auto", "Constant", "Linear", "Points", "Images", "ConvVAE", "x"])
NAMES = st.sampled_from(["target", "kp", "latents", "channels", "start", "stop", "steps", "path"])
NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.sampled_from(["0x" + "f" * 4_000, "9" * 5_000, "1_0", "1j", "1e102", "-" * 3_000 + "1"]),
)
EXPRESSIONS = st.recursive(
    st.one_of(NUMBERS, WORDS, st.text(max_size=8), st.text(max_size=8).map(repr)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(inner, max_size=3).map(lambda parts: f"({', '.join(parts)})"),
        st.lists(inner, max_size=2).map(lambda parts: "{" + ", ".join(parts) + "}"),
        st.tuples(WORDS, st.lists(st.tuples(NAMES, inner), max_size=2)).map(
            lambda call: f"{call[0]}({', '.join(f'{name}={value}' for name, value in call[1])})"
        ),
        inner.map(lambda part: f"-{part}"),
    ),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [
        *("control", "control.target", "data", "data.images", "model.latents", "model.channels"),
        *("training.batch", "training.seed", "optimiser.rate", "objective.kl_weights", "name"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(assignments=st.lists(st.tuples(PATHS, EXPRESSIONS), min_size=1, max_size=3))
def test_settings_of_a_grammar_are_refused_or_survive_being_written(assignments):
    try:
        experiment = override(
            preset("shapes2d-quick"), [f"{path}={text}" for path, text in assignments]
        )
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert from_dict(type(experiment), to_dict(experiment)) == experiment
    assert len(refusal) < 2_500


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    feeds = [
        targets.Case("images", {"path": "."}),
        targets.Case("images", {"path": "pipe.npz"}),
        targets.Case("factors", {"name": "pipe.npz", "selected": None}),
    ]
    for case in feeds:
        with pytest.raises(UserError, match="regular file"):
            targets.TARGETS[case.target].feed(case, tmp_path)
    for make in (targets.feed_text, targets.feed_dialogs):
        name = "text.txt" if make is targets.feed_text else "dialogs.jsonl"
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(UserError, match="regular file"):
            make(targets.Case("", {}), tmp_path)


def _png(side):
    def chunk(kind, body):
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    engine, row = zlib.compressobj(9), bytes(1 + 3 * side)
    body = b"".join(engine.compress(row) for _ in range(side)) + engine.flush()
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b"")


MEMORY = """
import resource, sys
from pathlib import Path
import targets
from controlvae.errors import UserError
target, values, folder = sys.argv[1], eval(sys.argv[2]), Path(sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    targets.TARGETS[target].feed(targets.Case(target, values), folder)
except UserError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def _zip(folder):
    with zipfile.ZipFile(folder / "input.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("zeros.png")
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w", force_zip64=True) as file:
            for _ in range(400):
                file.write(bytes(1 << 20))
    assert (folder / "input.zip").stat().st_size < 1 << 20


def _gzip(folder):
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb") as file:
        for _ in range(400):
            file.write(b"\n" * (1 << 20))
    (folder / "dialogs.jsonl").write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    ("target", "values", "write"),
    [
        ("images", {"path": "."}, lambda f: (f / "a.png").write_bytes(_png(7_000))),
        ("images", {"path": "input.zip"}, _zip),
        ("dialogs", {"split": "train", "held_out": 0.0}, _gzip),
    ],
    ids=["png", "zip", "gzip"],
)
def test_small_files_do_not_fill_the_memory(tmp_path, target, values, write):
    write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, target, repr(values), tmp_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": run._search_path()},
    )
    message, megabytes = done.stdout.strip().splitlines()
    assert "million" in message or "MB" in message
    assert int(megabytes) < 600


def test_every_option_of_every_command_is_fuzzed():
    assert set(commands.read_options()) == set(commands.BASES)
    drawn = [commands.draw_command(random.Random(seed)) for seed in range(6_000)]
    missing = {
        (name, option)
        for name, options in commands.read_options().items()
        for option, _ in options
        if not any(words[0] == name and option in words for words in drawn)
    }
    # These would wait for jobs, measure for minutes, open a browser, or train a paper's table.
    kept_out = {"--wait", "--thorough", "--open", "--train"}
    assert {option for _, option in missing} <= kept_out
