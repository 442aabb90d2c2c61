"""The package as a whole: what it costs to import, which way imports go, and that the examples in docstrings run."""

import ast
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import controlvae

ROOT = Path(controlvae.__file__).parent
CORE = [
    "errors",
    "laws",
    "_cuda_graph",
    "_controller_arguments",
    "_distributed",
    "_saved_state",
    "_state_layout",
    "_monitor",
    "_fused",
    "_state_store",
    "certificate",
    "controller",
    "controllers",
    "distributions",
    "metrics",
    "diagnostics",
    "tuning",
    "simulation",
    "integrations",
]
LAB = [
    "io",
    "reading",
    "optimiser",
    "objectives",
    "config",
    "data",
    "models",
    "ranks",
    "engines",
    "custom",
    "runs",
    "training",
    "cluster",
    "evaluation",
    "exports",
    "plots",
    "reports",
    "dashboard",
]
ROWS = [*CORE, *(f"lab.{room}" for room in LAB), "lab.api", "paper", "lab.bench", "lab.cli"]
FRAMEWORKS = {
    "accelerate",
    "diffusers",
    "jax",
    "keras",
    "lightning",
    "pythae",
    "pytorch_lightning",
    "scvi",
    "transformers",
}


def room_of(module):
    """Return the room a dotted module name belongs to, or None for the package roots."""
    parts = module.split(".")[1:]
    name = ".".join(parts[:2]) if parts[:1] == ["lab"] else ".".join(parts[:1])
    return name if name in ROWS else None


def imported_rooms(node):
    """Return the rooms named by `from controlvae.x import y` or `import controlvae.x`."""
    names = []
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "controlvae":
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names if alias.name.startswith("controlvae.")]
    return {room for room in map(room_of, names) if room}


def test_imports_follow_the_layers():
    violations = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        room = room_of(".".join(("controlvae", *relative.with_suffix("").parts)))
        if room is None:
            continue
        allowed = set(ROWS[: ROWS.index(room) + 1])
        for node in ast.walk(ast.parse(path.read_text())):
            violations += [
                f"{relative}:{node.lineno} imports {other}"
                for other in imported_rooms(node) - allowed
            ]
    assert not violations


def test_help_does_not_import_torch():
    code = "import sys; sys.argv = ['controlvae', '--help']; import controlvae.lab.cli.main as m\ntry: m.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize(
    ("given", "turns"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_let_go_of_their_cores_unless_told_otherwise(given, turns, monkeypatch):
    for name in (
        "GOMP_SPINCOUNT",
        "OMP_WAIT_POLICY",
    ):  # for a command reads them once, before torch is imported
        monkeypatch.delenv(name, raising=False)
    code = "import os, sys; sys.argv = ['controlvae', '--help']; import controlvae.lab.cli.main as m\ntry: m.main()\nexcept SystemExit: pass\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == str(turns)


def test_training_begins_without_what_draws_pictures_and_without_torchs_compiler(tmp_path):
    """Which together take longer to import than torch itself."""
    code = "import sys; import controlvae.lab.cli.main as m\ntry: m.main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    words = [
        "train",
        "shapes2d-quick",
        "--set",
        "training.steps=1",
        "--set",
        "data.images=64",
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "finished at step 1" in done.stdout
    assert not {"matplotlib", "torch._dynamo", "scipy", "sklearn"} & set(done.stdout.split())


def test_the_library_adds_little_to_torchs_own_import():
    code = """
import time
began = time.perf_counter()
import torch, numpy
there = time.perf_counter()
import controlvae; controlvae.PI
print(there - began, time.perf_counter() - there)
"""
    lines = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    torchs, ours = (
        min(times)
        for times in zip(*(map(float, done.stdout.split()) for done in lines), strict=True)
    )
    assert ours < 0.1 * torchs


def test_the_library_imports_no_other_framework():
    code = "import sys, controlvae; [getattr(controlvae, name) for name in dir(controlvae)]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not FRAMEWORKS & set(done.stdout.split())


CORE_ONLY = """
import importlib.abc, sys

LAB_ONLY = {"safetensors", "typer", "rich", "matplotlib", "PIL", "jinja2", "scipy", "sklearn"}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in LAB_ONLY:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
import torch
import controlvae as cv
from controlvae.metrics import mig

control = cv.Controller(cv.Auto(target=18.0))
control.step(torch.tensor(25.0))
factors = torch.randint(3, (500, 2), generator=torch.Generator().manual_seed(0))
codes = factors + 0.1 * torch.randn(500, 2, generator=torch.Generator().manual_seed(1))
health = cv.Health()
health.update(codes, torch.full_like(codes, -2.0))
print(control.beta.item() > 0, mig(codes, factors).score > 0.5, health.read().used_latents)
"""


def test_core_runs_without_the_packages_of_the_lab():
    done = subprocess.run(
        [sys.executable, "-c", CORE_ONLY], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True", "2"], done.stderr


CLIENT = """
import torch
import controlvae as cv
control = cv.Controller(cv.Auto(target=8.0))
reveal_type(control.step(3.0))
reveal_type(control.step(torch.tensor(3.0)))
cv.PI(targt=3.0)
cv.Contrller
"""


def test_a_users_type_checker_knows_the_package(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "client.py").write_text(CLIENT)
    ours = (
        ROOT.parent
    )  # with its settings and its cache, which `make types` has filled: torch takes half a minute
    settings = [
        "--config-file",
        str(ours / "pyproject.toml"),
        "--cache-dir",
        str(ours / ".mypy_cache"),
    ]
    said, _, _ = api.run([str(tmp_path / "client.py"), *settings])
    for words in (
        'type is "float"',
        'type is "torch._tensor.Tensor"',
        "did you mean",
        'no attribute "Contrller"',
    ):
        assert words in said
    assert "Found 2 errors" in said


DOCUMENTED = [  # integrations need their frameworks: their examples run as programs in examples/
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] not in ("integrations", "lab", "paper")
    and ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_docstring_examples_run(module):
    if module == "metrics.corpus_bleu":
        pytest.importorskip("sacrebleu")
    loaded = importlib.import_module(f"controlvae.{module}")
    names = {
        **{name: getattr(controlvae, name) for name in controlvae.__all__},
        **vars(loaded),
        "torch": importlib.import_module("torch"),
    }
    failed, tried = doctest.testmod(loaded, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


def test_no_pickle_anywhere():
    """No module imports a pickler, and nothing calls torch.load, torch.save or NumPy with pickles allowed.

    The published CIFAR-10 is pickled; its reader makes nothing but notes, and `test_images.py` tries to fool it.
    So are the published Inception and DINOv2: torch's reader takes tensors and nothing else.
    """
    guilty = []
    for path in ROOT.rglob("*.py"):
        source = path.read_text().splitlines()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names) if {n.name for n in names} & {
                    "pickle",
                    "joblib",
                    "dill",
                    "shelve",
                }:
                    guilty.append(f"{path}:{node.lineno}")
                case ast.ImportFrom(module="pickle" | "joblib" | "dill" | "shelve") if (
                    path.name != "cifar10_pickle.py"
                ):
                    guilty.append(f"{path}:{node.lineno}")
                case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save"):
                    if path.name not in (
                        "inception_weights.py",
                        "dinov2_weights.py",
                    ) or "weights_only=True" not in "".join(
                        source[node.lineno - 1 : node.lineno + 4]
                    ):
                        guilty.append(f"{path}:{node.lineno}")
                case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                    guilty.append(f"{path}:{node.lineno}")
    assert not guilty


def test_every_file_opens_with_a_sentence():
    assert all(ast.get_docstring(ast.parse(p.read_text())) for p in ROOT.rglob("*.py"))


def test_chains_share_a_gpu_each_with_the_time_left_and_their_finds_come_home_without_weights(
    tmp_path,
):
    seed = tmp_path / "runs" / "seed-1"
    for name in (
        "log.jsonl",
        "metrics.json",
        "checkpoint/step-1/tensors.safetensors",
        "figures/samples.png",
    ):
        (seed / name).parent.mkdir(parents=True, exist_ok=True)
        (seed / name).write_text("{}")
    tools = tmp_path / "tools"  # and nothing beside them, a GPU's least of all
    tools.mkdir()
    for name in ("bash", "cat", "date", "find", "gzip", "ls", "mkdir", "tar", "tr"):
        (tools / name).symlink_to(shutil.which(name))
    words = ["-t", "900", "train one;\n  evaluate runs/one", "reproduce two --only 'a b'"]
    subprocess.run(
        [tools / "bash", ROOT.parent / "examples" / "share_gpu.sh", *words],
        cwd=tmp_path,
        env={**os.environ, "CONTROLVAE": "echo ran", "PATH": str(tools)},
        check=True,
        timeout=60,
    )
    logs = [(tmp_path / "found" / f"chain-{number}.txt").read_text() for number in (1, 2)]
    ran = [
        re.sub(r"(900|89\d)s", "15m", line)
        for log in logs
        for line in re.findall("^ran (.*)", log, re.MULTILINE)
    ]
    assert ran == [
        "train one --time-limit 15m",
        "evaluate runs/one",
        "reproduce two --only a b --time-limit 15m",
    ]
    with tarfile.open(tmp_path / "found" / "found.tgz") as archive:
        assert sorted(archive.getnames()) == ["runs/seed-1/log.jsonl", "runs/seed-1/metrics.json"]
