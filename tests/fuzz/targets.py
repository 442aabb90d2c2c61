"""What is fuzzed: for each target a function that makes inputs, and one that feeds them.

An input is a `Case`: values of JSON and files as bytes. It is written to `cases/` when it fails, and
stays there, so it does not depend on how inputs are made later.
"""

import base64
import contextlib
import gzip
import io
import json
import os
import pickle
import random
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import commands
import numpy as np
from mutation import STRANGE_TEXTS, dump_json, mutate_bytes, mutate_json, strange_value

from controlvae.errors import RunError, UserError


@dataclass
class Case:
    """One input."""

    target: str
    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def dump(self) -> str:
        """Return the input as JSON."""
        files = {name: base64.b64encode(data).decode() for name, data in self.files.items()}
        content = {"target": self.target, "values": self.values, "files": files}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def load(cls, text: str) -> "Case":
        """Return the input that `dump` wrote."""
        content = json.loads(text)
        files = {name: base64.b64decode(data) for name, data in content["files"].items()}
        return cls(content["target"], content["values"], files)

    def write_files(self, folder: Path) -> None:
        """Write the files into a folder. Names that the system refuses are left out."""
        for name, data in self.files.items():
            with contextlib.suppress(OSError, ValueError):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


class Target(NamedTuple):
    """Maker and consumer of inputs of one kind."""

    make: Callable[[random.Random], Case]
    feed: Callable[[Case, Path], None]
    weight: int  # share among all inputs


# Settings: a grammar of `--set`

_NAMES = ["control", "model", "data", "objective", "optimiser", "training", "name", "nonsense"]
_FIELDS = [
    "target", "kp", "latents", "channels", "hidden", "images", "batch", "steps", "rate", "seed",
    "likelihood", "kl_weights", "blocks", "width", "path", "size", "fit", "held_out", "split",
    "schedule", "validation", "log_every", "beta_min", "beta_max", "dense", "initial", "x",
]  # fmt: skip
_CLASSES = [
    "PI", "Auto", "PID", "Geco", "Constant", "Linear", "Staircase", "Points", "Capacity",
    "Cyclical", "Sigmoid", "ConvVAE", "ImageVAE", "TextVAE", "DialogVAE", "Images", "TextFile",
    "DialogFile", "Shapes2D", "CIFAR10", "ELBO", "TotalCorrelation", "Adam", "Gaussian", "Nonsense",
]  # fmt: skip


def _expression(draw: random.Random, depth: int = 0) -> str:
    kind = draw.randrange(15 if depth < 4 else 7)
    if kind <= 1:
        return str(draw.choice([0, 1, 3, 18, 64, 0.5, 1e-3, 1e102, 3e17, -1, 10**40, 1e-320]))
    if kind == 2:
        return draw.choice(["inf", "nan", "none", "true", "false", "-inf", "1_000", "0x1f", "1j"])
    if kind == 3:
        return draw.choice(["0x" + "f" * 4_000, "9" * 5_000, "-" * 3_000 + "1", "~" * 300 + "1"])
    if kind == 4:
        return repr(draw.choice(STRANGE_TEXTS))
    if kind == 5:
        return draw.choice(STRANGE_TEXTS)
    if kind == 6:
        return draw.choice(_CLASSES)
    parts = [_expression(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind <= 9:
        named = [f"{draw.choice(_FIELDS)}={part}" for part in parts[1:]]
        return f"{draw.choice(_CLASSES)}({', '.join([*parts[:1], *named])})"
    if kind == 10:
        return f"({', '.join(parts)})"
    if kind == 11:
        return f"[{','.join(parts)}]"
    if kind == 12:
        return draw.choice(["{[]}", "{1: 2}", "{" + ",".join(parts) + "}", "(" * 200 + ")" * 200])
    if kind == 13:
        return draw.choice(
            ["*a", "a.b", "a[0]", "lambda: 0", "f(*[1])", "f(**{})", "a if b else c"]
        )
    return draw.choice(["[" * 300 + "]" * 300, "PI(" * 150 + ")" * 150, "not " * 300 + "1"])


def make_settings(draw: random.Random) -> Case:
    sets = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        depth = draw.choice([1, 2, 2, 2, 3])
        path = ".".join([draw.choice(_NAMES), *draw.choices(_FIELDS, k=depth - 1)])
        sets.append(f"{path}{draw.choice(['=', '=', '=', '', '=='])}{_expression(draw)}")
    presets = ["shapes2d-quick", "text-quick", "images", "dialog-quick", "cifar10-quick"]
    return Case("settings", {"preset": draw.choice(presets), "sets": sets})


def feed_settings(case: Case, folder: Path) -> None:
    from controlvae.lab.config import override, preset
    from controlvae.lab.config.describe import describe_settings
    from controlvae.lab.config.serialization import from_dict, to_dict

    try:
        start = preset(case.values["preset"])
    except UserError:
        start = preset("shapes2d-quick")
    experiment = override(start, case.values["sets"])
    list(describe_settings(experiment))
    text = json.dumps(to_dict(experiment))
    assert from_dict(type(experiment), json.loads(text)) == experiment
    _build(experiment)


def _build(experiment: Any) -> None:
    """Build the model of settings that were accepted, on data that are small."""
    import torch

    from controlvae.lab.config import ConvVAEConfig, ImageVAEConfig
    from controlvae.lab.data.dataset import ByteImages
    from controlvae.lab.models import build

    if isinstance(experiment.model, ConvVAEConfig | ImageVAEConfig):
        images = ByteImages(torch.zeros(4, 32 * 32, dtype=torch.uint8), (1, 32, 32), "fuzz")
        try:
            build(experiment, images)
        except ValueError as error:
            raise UserError(str(error)) from None


def make_experiment(draw: random.Random) -> Case:
    from controlvae.lab.config import preset
    from controlvae.lab.config.serialization import to_dict

    name = draw.choice(["shapes2d-quick", "text-quick", "shapes2d-factor"])
    content = {"format": 1, "experiment": to_dict(preset(name)), "command": "controlvae train"}
    return Case("experiment", files={"experiment.json": dump_json(mutate_json(draw, content))})


def feed_experiment(case: Case, folder: Path) -> None:
    from controlvae.lab.runs.folder import RunFolder

    _build(RunFolder(folder).experiment())


# Images


def _pictures(draw: random.Random) -> dict[str, bytes]:
    from PIL import Image

    files = {}
    for number in range(draw.choice([1, 2, 3])):
        mode = draw.choice(["L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I;16"])
        kinds = {"CMYK": ["jpg", "tiff"], "LA": ["png", "tiff"], "I;16": ["png", "tiff"]}
        usual = ["png", "gif", "bmp", "tiff", "webp"] if mode in ("P", "1") else ["png", "webp"]
        kind = draw.choice(kinds.get(mode, [*usual, *(["jpg"] if mode in ("L", "RGB") else [])]))
        side = draw.choice([8, 12, 16])
        size = (side, draw.choice([side, 9]))
        noise = np.random.default_rng(draw.randrange(1 << 30)).integers(0, 256, (*size[::-1], 4))
        image = Image.fromarray(noise.astype(np.uint8), "RGBA")
        image = (
            Image.fromarray((noise[..., 0] * 257).astype(np.uint16))
            if mode == "I;16"
            else image.convert("L" if mode == "LA" else mode).convert(mode)
        )
        buffer = io.BytesIO()
        with contextlib.suppress(OSError, KeyError):
            image.save(buffer, {"jpg": "JPEG"}.get(kind, kind.upper()))
        files[f"{number}.{kind}"] = buffer.getvalue()
    return files


def _bomb(draw: random.Random) -> tuple[str, bytes]:
    """Return a small file that wants to become a large image."""
    import struct
    import zlib

    side = draw.choice([3_000, 20_000, 70_000, 2**31 - 1])
    raw = zlib.compress(b"\0" * draw.choice([100, 1 << 20, 1 << 24]), 9)
    header = struct.pack(">IIBBBBB", side, side, 8, draw.choice([0, 2, 6]), 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in (
        (b"IHDR", header),
        (b"zTXt", b"a\0\0" + raw),
        (b"IDAT", raw),
        (b"IEND", b""),
    ):
        check = zlib.crc32(kind + body)
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)
    return "bomb.png", data


def _image_settings(draw: random.Random) -> dict[str, Any]:
    return {
        "size": draw.choice([None, 8, 8, 16]),
        "fit": draw.choice(["crop", "stretch", 4, 64]),
        "unreadable": draw.choice(["refuse", "skip"]),
        "held_out": draw.choice([0.0, 0.5]),
    }


def make_images(draw: random.Random) -> Case:
    files = _pictures(draw)
    if draw.random() < 0.05:
        name, data = _bomb(draw)
        files[name] = data
    name = draw.choice(list(files))
    if draw.random() < 0.8:
        files[name] = mutate_bytes(draw, files[name])
    if draw.random() < 0.3:
        buffer = io.BytesIO()
        kind = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            for each, data in files.items():
                archive.writestr(each, data)
            if draw.random() < 0.1:
                zeros = zipfile.ZipInfo("zeros.png")
                zeros.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(zeros, "w") as file:
                    for _ in range(300):
                        file.write(bytes(1 << 20))
        data = buffer.getvalue()
        files = {"input.zip": mutate_bytes(draw, data) if draw.random() < 0.8 else data}
        return Case("images", {"path": "input.zip", **_image_settings(draw)}, files)
    return Case("images", {"path": ".", **_image_settings(draw)}, files)


def feed_images(case: Case, folder: Path) -> None:
    from controlvae.lab.config import Images
    from controlvae.lab.data.registry import load_dataset

    values = dict(case.values)
    name = values.pop("path")
    try:
        settings = Images(str(folder / name) if name != "." else str(folder), **values)
    except ValueError as error:
        raise UserError(str(error)) from None
    examples = load_dataset(settings, None)
    examples.fingerprint()
    examples.batch(_first(examples))


def _first(examples: Any) -> Any:
    import torch

    return torch.arange(min(2, len(examples)))


def _array(draw: random.Random) -> np.ndarray:
    shape = draw.choice([(6, 8, 8), (6, 8, 8, 1), (6, 8, 8, 3), (6, 3, 8, 8), (2, 8, 8, 4), (8, 8)])
    generator = np.random.default_rng(draw.randrange(1 << 30))
    dtype = draw.choice([np.uint8, bool, np.float32, np.float64, np.int64, "S0", "U3", ">f4"])
    values = generator.random(shape)
    if dtype in (np.uint8, np.int64):
        values = values * 255
    array = values.astype(dtype)
    return np.asfortranarray(array) if draw.random() < 0.2 else array


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _npz(draw: random.Random, arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    kind = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, array in arrays.items():
            data = _npy(array)
            if draw.random() < 0.3:
                data = mutate_bytes(draw, data[:200]) + data[200:]
            archive.writestr(f"{name}.npy", data)
    data = buffer.getvalue()
    return mutate_bytes(draw, data) if draw.random() < 0.5 else data


def _header(draw: random.Random) -> bytes:
    """Return a .npy file with a header of text that no library writes."""
    sides = ["10**31", "1" + "0" * 31, "-6", "True", "6.0", "None", "(6,)", "[6]"]
    text = draw.choice(
        [
            "{'descr': '|u1', 'fortran_order': False, 'shape': ("
            + draw.choice(sides)
            + ", 8, 8), }",
            "{" * 300,
            "(" * 2_000 + ")" * 2_000,
            "{'descr': '|O', 'fortran_order': False, 'shape': (6, 8, 8), }",
            "{'descr': '|S0', 'fortran_order': False, 'shape': (6, 8, 8), }",
            "{'descr': [('a', '|u1')], 'fortran_order': 1, 'shape': (6, 8, 8), }",
            "__import__('os').getcwd()",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 8, 8), ",
            "-" * 3_000 + "1",
        ]
    )
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + bytes(384)


def make_arrays(draw: random.Random) -> Case:
    kind = draw.randrange(4)
    if kind == 0:
        data = _header(draw)
    elif kind == 1:
        data = mutate_bytes(draw, _npy(_array(draw)))
    else:
        arrays = {"imgs": _array(draw), "other": np.arange(6)}
        if kind == 3:
            pictures = [data for data in _pictures(draw).values() if data]
            joined = np.frombuffer(b"".join(pictures), np.uint8)
            ends = np.cumsum([0, *map(len, pictures)]).astype(draw.choice(["i8", "u1", "f8", "S1"]))
            arrays = {draw.choice(["webp", "png"]): joined, "offsets": ends}
        data = _npz(draw, arrays)
    name = "input.npz" if kind > 1 else "input.npy"
    return Case("images", {"path": name, **_image_settings(draw)}, {name: data})


# Tables of factors, text, dialogs, codes


def make_factors(draw: random.Random) -> Case:
    rows = [[f"{n}.png", str(n % 2), draw.choice(["red", "blue", "1,5", ""])] for n in range(6)]
    separator = draw.choice([",", ";", "\t"])
    lines = [separator.join(row) for row in [["file", "shape", "colour"], *rows]]
    data = "\n".join(lines).encode(draw.choice(["utf-8", "utf-16", "utf-8-sig"]))
    kind = draw.randrange(4)
    if kind == 0:
        table = {"factors": np.arange(12).reshape(6, 2) % 3, "factor_names": np.array(["a", "b"])}
        table["unordered"] = np.array([draw.choice(["a", "x"])])
        name, data = "table.npz", _npz(draw, table)
    elif kind == 1:
        name, data = "table.npy", mutate_bytes(draw, _npy(np.arange(12).reshape(6, 2) % 3))
    else:
        name = draw.choice(["table.csv", "table.tsv"])
        data = mutate_bytes(draw, data) if draw.random() < 0.8 else data
        if draw.random() < 0.05:
            data += b"\n" + b"a" * 120_000 + b",1,2" + b"\nb,1,2" * 1_200
    selected = draw.choice([None, None, "shape", "shape,colour", "x", ""])
    return Case("factors", {"name": name, "selected": selected}, {name: data})


def feed_factors(case: Case, folder: Path) -> None:
    from controlvae.lab.data.factors import read_factors

    files = [f"{number}.png" for number in range(6)]
    read_factors(folder / case.values["name"], case.values["selected"], 6, files)


def make_text(draw: random.Random) -> Case:
    words = ["a", "the", "cat", "sat", "é", "\U0001f600", "x" * 50, "\0", "\u200b"]
    lines = [" ".join(draw.choices(words, k=draw.randrange(12))) for _ in range(draw.randrange(40))]
    data = "\n".join(lines).encode(draw.choice(["utf-8", "utf-8", "utf-16"]))
    if draw.random() < 0.6:
        data = mutate_bytes(draw, data)
    if draw.random() < 0.05:
        data += b" ".join([b"word"] * 100_000)
    values = {
        "split": draw.choice(["train", "test"]),
        "held_out": draw.choice([0.0, 0.1, 0.9]),
        "max_words": draw.choice([None, 1, 10]),
        "vocabulary_size": draw.choice([None, 5, 100]),
        "lower": draw.random() < 0.5,
    }
    return Case("text", values, {"text.txt": data})


def feed_text(case: Case, folder: Path) -> None:
    from controlvae.lab.data.text.text_file import text_file

    examples = text_file(str(folder / "text.txt"), **case.values)
    examples.fingerprint()
    type(examples).from_metadata(examples.metadata(), "fuzz")
    examples.batch(_first(examples))


def make_dialogs(draw: random.Random) -> Case:
    lines = []
    for _ in range(draw.randrange(1, 8)):
        turns = [[draw.choice("AB"), "how are you", ["q", "+"]] for _ in range(draw.randrange(6))]
        age = 10**400 if draw.random() < 0.02 else draw.choice(["31", 31])
        profile = {"age": age, "education": "2", "sex": "FEMALE"}
        dialog = {"utts": turns, "topic": "cats", "A": profile, "B": {}}
        lines.append(dump_json(mutate_json(draw, dialog) if draw.random() < 0.15 else dialog))
    if draw.random() < 0.1:
        lines.append(
            draw.choice([b"[" * 200_000, b'{"a":' * 5_000, b'{"utts": ' + b"1" * 400 + b"}"])
        )
    data = b"\n".join(lines)
    if draw.random() < 0.25:
        data = mutate_bytes(draw, data)
    if draw.random() < 0.3:
        data = gzip.compress(data)
        data = mutate_bytes(draw, data) if draw.random() < 0.5 else data
    if draw.random() < 0.02:
        buffer = io.BytesIO()
        with gzip.open(buffer, "wb") as file:
            for _ in range(200):
                file.write(b"\n" * (1 << 20))
        data = buffer.getvalue()
    values = {"split": draw.choice(["train", "test"]), "held_out": draw.choice([0.0, 0.5])}
    return Case("dialogs", values, {"dialogs.jsonl": data})


def feed_dialogs(case: Case, folder: Path) -> None:
    from controlvae.lab.data.text.dialog_file import dialog_file

    examples = dialog_file(str(folder / "dialogs.jsonl"), **case.values)
    examples.fingerprint()
    type(examples).from_metadata(examples.metadata(), "fuzz")
    examples.batch(_first(examples))


def make_codes(draw: random.Random) -> Case:
    generator = np.random.default_rng(draw.randrange(1 << 30))
    arrays: dict[str, Any] = {"means": generator.normal(size=(40, 3))}
    if draw.random() < 0.2:
        arrays["means"] = arrays["means"] * draw.choice([np.nan, np.inf, 1e300, 0])
    if draw.random() < 0.5:
        arrays["log_variances"] = generator.normal(size=(40, draw.choice([3, 3, 2])))
    if draw.random() < 0.7:
        arrays["factors"] = generator.integers(0, 3, (40, draw.choice([1, 2, 2])))
        arrays["factor_names"] = np.array(draw.choice([["a", "b"], ["a", "a"], ["a"], [1, 2]]))
    if draw.random() < 0.3:
        arrays["reconstruction"] = np.array(draw.choice([1.0, np.nan, np.inf]))
    if draw.random() < 0.3:
        name = draw.choice(list(arrays))
        with contextlib.suppress(ValueError, TypeError):
            arrays[name] = arrays[name].astype(
                draw.choice(["f2", "i1", "U2", "c8", "bool", "M8[s]"])
            )
    return Case("codes", files={"codes.npz": _npz(draw, arrays)})


def feed_codes(case: Case, folder: Path) -> None:
    import torch

    from controlvae.lab.evaluation.external_codes import score_codes

    file, _ = score_codes(folder / "codes.npz", torch.device("cpu"))
    file.describe()


def make_pickles(draw: random.Random) -> Case:
    content = {b"data": np.zeros((10, 3072), np.uint8), b"labels": [0] * 10, b"batch_label": b"x"}
    return Case("pickles", files={"batch": mutate_bytes(draw, pickle.dumps(content, 2))})


def feed_pickles(case: Case, folder: Path) -> None:
    from controlvae.lab.data.cifar10 import SplitFiles, _read_pickled_parts

    with mock.patch.dict("controlvae.lab.data.cifar10.PICKLES", {"train": ["batch"]}):
        list(_read_pickled_parts(SplitFiles("folder", [folder / "batch"]), "train"))


# Run folders, commands, the user's own models


def prepare(folder: Path) -> None:
    """Train the small runs whose folders are damaged, and evaluate one."""
    from controlvae import lab

    small = {
        "training.steps": 30, "training.batch": 8, "training.log_every": 5, "data.images": 64,
        "model.channels": "(4,4,4)", "model.hidden": 8, "model.latents": 3,
    }  # fmt: skip
    options: dict[str, Any] = {"device": "cpu", "progress": False, "threads": 1}
    lab.train("shapes2d-quick", run=folder / "images", overrides=small, **options)
    run = lab.load_run(folder / "images")
    lab.evaluate(run, examples=16)
    text = {"training.steps": 10, "training.batch": 4, "training.log_every": 5, "model.width": 16}
    text |= {"model.inner": 16, "model.heads": 2, "model.latents": 2}
    lab.train("text-quick", run=folder / "text", overrides=text, **options)
    short = {**small, "training.steps": 4, "training.log_every": 2}
    lab.curve(
        "shapes2d-quick", rates=(2.0, 6.0), bins=2, points=2, examples=8, run=folder / "curve",
        overrides=short, **options,
    )  # fmt: skip
    for name in ("images", "text"):
        (folder / name / "request.json").write_text('{"target": 5.0}\n')


PREPARED = Path()  # set by the runner
_COMMANDS = [
    ["report", "run", "--out", "page.html", "--device", "cpu", "--examples", "16"],
    ["resume", "run", "--device", "cpu", "--time-limit", "1s"],
    ["evaluate", "run", "--device", "cpu", "--examples", "16", "--metrics", "rmig"],
    ["sample", "run", "--device", "cpu", "--rate", "3", "--out", "samples.png"],
    ["reconstruct", "run", "--device", "cpu", "--out", "reconstruction.png"],
    ["status", "."],
    [
        *(
            "curve",
            "shapes2d-quick",
            "--rates",
            "2,6",
            "--points",
            "2",
            "--bins",
            "2",
            "--examples",
        ),
        *("8", "--run", "run", "--device", "cpu", "--time-limit", "1s", "--threads", "1"),
        *commands.SMALL,
    ],
    ["simulate", "run", "--law", "PI(3)"],
    ["branch", "run", "child", "--set", "training.steps=33"],
    ["sample", "run", "--device", "cpu", "--out", "samples.png"],
    ["traverse", "run", "--device", "cpu", "--out", "traversal.png"],
    ["steer", "run", "3"],
    ["export", "run", "--out", "exported", "--format", "hub"],
    [
        "train",
        "shapes2d-quick",
        "--replay",
        "run",
        "--run",
        "replayed",
        "--set",
        "training.steps=3",
        *("--set", "data.images=16", "--set", "model.channels=(4,4,4)", "--device", "cpu"),
        *("--threads", "1"),
    ],
]


def make_run(draw: random.Random) -> Case:
    source = PREPARED / draw.choice(["images", "images", "text", "curve"])
    names = [
        "experiment.json", "log.jsonl", "log.jsonl", "events.jsonl", "events.jsonl", "metrics.json",
        "request.json", "words.json", "validation.jsonl", "state.json", "tensors.safetensors",
        "curve.json", "pictures.json",
    ]  # fmt: skip
    files = {}
    for name in draw.sample(names, draw.choice([1, 1, 2])):
        found = sorted(source.rglob(name))
        if not found:
            continue
        path = draw.choice(found)
        data = path.read_bytes()
        if name.endswith(".jsonl"):
            lines = data.splitlines()
            place = draw.randrange(len(lines))
            if draw.random() < 0.8:
                lines[place] = dump_json(mutate_json(draw, json.loads(lines[place])))
            else:
                lines[place] = draw.choice([b"[" * 200_000, b"", b"{}", b"null", b"[]", b'"a"'])
            data = b"\n".join(lines) + draw.choice([b"\n", b"\n", b""])
        elif name == "state.json" and draw.random() < 0.7:
            data = _with_new_digest(mutate_json(draw, json.loads(data)["content"]))
        elif name.endswith(".json") and draw.random() < 0.8:
            data = dump_json(mutate_json(draw, json.loads(data)))
        else:
            data = mutate_bytes(draw, data)
        files[path.relative_to(source).as_posix()] = data
    command = draw.choice(_COMMANDS)
    return Case("run", {"kind": source.name, "command": command}, files)


def _with_new_digest(content: Any) -> bytes:
    """Return a state file whose digest is right although its content was changed."""
    import hashlib

    try:
        text = json.dumps(content, sort_keys=True)
        return json.dumps(
            {"digest": hashlib.sha256(text.encode()).hexdigest(), "content": content}
        ).encode()
    except (TypeError, ValueError, RecursionError):
        return b"{}"


def feed_run(case: Case, folder: Path) -> None:
    shutil.copytree(PREPARED / case.values["kind"], folder / "run")
    case.write_files(folder / "run")
    run_command(case.values["command"], folder)


def _refuse_processes(*_: Any) -> None:
    raise AssertionError("a fuzzed command started processes")


def run_command(words: list[str], folder: Path) -> None:
    """Run a command in this process, and raise what it did not expect."""
    from controlvae.lab.cli.commands import app
    from controlvae.lab.cli.main import _describe_error

    words = [word.encode(errors="replace").decode() for word in words]
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.object(sys, "argv", ["controlvae", *words]),
        mock.patch.object(sys, "stdin", io.StringIO("how are you\n")),
        mock.patch("uvicorn.Server.run", return_value=None),  # it would serve for ever
        mock.patch("controlvae.lab.ranks.launch._launch", _refuse_processes),
        mock.patch(
            "controlvae.lab.bench.training_speed._Runner", side_effect=UserError("not measured")
        ),
    ):
        try:
            app(args=words, standalone_mode=False)
        except Exception as error:
            if _describe_error(error) is None:
                raise


def make_command(draw: random.Random) -> Case:
    code = draw.choice(
        [
            "", "import", "1/0", "raise SystemExit(3)", "experiment = 5", "model = None\ndataset = 0",
            "def experiment(): return experiment()", "\0", "x = 'é'", "import nonsense",
            "model = lambda: 1/0\ndataset = lambda: []", "def experiment(): raise KeyError('x')",
            "from controlvae import lab\nexperiment = lab.define(None, None, law=None, steps='x')",
            "import controlvae as cv\nmodel = cv\ndataset = [[1], [2, 3]]\nsteps = -1",
            "def experiment(a): pass", "class experiment:\n    pass", "experiment = type",
        ]
    )  # fmt: skip
    data = mutate_bytes(draw, code.encode()) if draw.random() < 0.3 else code.encode()
    weights = draw.choice([b"", b"x", pickle.dumps({"a": 1}), b"PK\x03\x04" + bytes(100)])
    codes = _npz(draw, {"means": np.random.default_rng(0).normal(size=(40, 3))})
    files = {"broken.py": data, "weights.pth": weights, "codes.npz": codes, "file.txt": b"a,b\n1"}
    words = [word.encode(errors="replace").decode() for word in commands.draw_command(draw)]
    return Case("command", {"command": words, "runs": ["images", "text", "curve"]}, files)


_NAMES_OF_RUNS = {"images": "run"}


def feed_command(case: Case, folder: Path) -> None:
    for name in case.values.get("runs", ["images"]):
        shown = _NAMES_OF_RUNS.get(name, name)
        if any(word == "." or shown in word for word in case.values["command"]):
            shutil.copytree(PREPARED / name, folder / shown)
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "dangling").symlink_to("nowhere")
    case.write_files(folder)
    run_command(case.values["command"], folder)


def make_fit(draw: random.Random) -> Case:
    kinds = ["array", "list", "dict", "none", "text", "number", "ragged", "nan", "empty", "ints"]
    values = {
        "data": draw.choice(kinds),
        "shape": draw.choice([[8, 4], [8, 1, 4, 4], [0, 4], [1, 4], [8]]),
        "model": draw.choice(["good", "good", "no encode", "nan", "raises", "wrong shape", "none"]),
        "steps": draw.choice([2, 2, 0, -1, 1.5, "2", None, True, 10**30]),
        "settings": {
            name: strange_value(draw, 2)
            for name in draw.sample(
                ["batch", "seed", "learning_rate", "likelihood", "clip", "validation", "nonsense",
                 "log_every", "precision", "seeds", "threads", "callbacks", "time_limit"],
                draw.choice([0, 1, 2]),
            )
        },
    }  # fmt: skip
    return Case("fit", values)


def feed_fit(case: Case, folder: Path) -> None:
    import torch

    import controlvae as cv
    from controlvae import lab

    values = case.values
    shape = values["shape"]
    width = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    array = np.random.default_rng(0).random(shape).astype(np.float32)
    data: Any = {
        "array": array,
        "list": array.tolist(),
        "dict": {"x": array, "y": 3},
        "none": None,
        "text": "no/such/file",
        "number": 5,
        "ragged": [[1.0], [1.0, 2.0]],
        "nan": np.full(shape, np.nan, np.float32),
        "empty": [],
        "ints": (array * 9).astype(np.int64),
    }[values["data"]]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = torch.nn.Flatten()
            self.inner, self.outer = torch.nn.Linear(width, 4), torch.nn.Linear(2, width)

        def encode(self, x: Any) -> Any:
            if values["model"] == "raises":
                raise KeyError("model")
            mean, log_variance = self.inner(self.flat(x)).chunk(2, 1)
            if values["model"] == "nan":
                mean = mean * float("nan")
            return (
                (mean, log_variance[:, :1])
                if values["model"] == "wrong shape"
                else (mean, log_variance)
            )

        def decode(self, z: Any) -> Any:
            return self.outer(z).view(-1, *shape[1:])

    if values["model"] == "no encode":
        del Model.encode
    model: Any = None if values["model"] == "none" else Model()
    settings = values["settings"]
    if isinstance(settings.get("seeds"), int) and settings["seeds"] > 2:
        settings = {**settings, "seeds": 2}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        lab.fit(
            model,
            data,
            law=cv.Auto(2.0),
            steps=values["steps"],
            run=folder / "run",
            progress=False,
            **{"time_limit": 2.0, "device": "cpu", **settings},
        )


TARGETS = {
    "settings": Target(make_settings, feed_settings, 90),
    "experiment": Target(make_experiment, feed_experiment, 60),
    "images": Target(make_images, feed_images, 9),
    "arrays": Target(make_arrays, feed_images, 20),
    "factors": Target(make_factors, feed_factors, 54),
    "text": Target(make_text, feed_text, 24),
    "dialogs": Target(make_dialogs, feed_dialogs, 36),
    "codes": Target(make_codes, feed_codes, 3),
    "pickles": Target(make_pickles, feed_pickles, 12),
    "run": Target(make_run, feed_run, 3),
    "command": Target(make_command, feed_command, 1),
    "fit": Target(make_fit, feed_fit, 1),
}
# A refused input ends in one of these, with a line for the user.
EXPECTED = (UserError, RunError, KeyboardInterrupt)
