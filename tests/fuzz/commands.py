"""A grammar of command lines: every command with every option it has, and values good and odd.

Options are read from the command line itself, so that a new one is fuzzed at once. What would train
for long, start processes or serve for ever is kept small, see `BASES` and `_forbidden`.
"""

import random
from functools import cache
from typing import Any

_SETS = [
    "training.steps=3",
    "training.batch=8",
    "training.log_every=2",
    "data.images=32",
    "model.channels=(4,4,4)",
    "model.hidden=8",
    "model.latents=3",
]
SMALL = [word for each in _SETS for word in ("--set", each)]
LIMITS = ["--device", "cpu", "--time-limit", "2s"]
_TRAIN = [*SMALL, *LIMITS, "--threads", "1"]
_IMAGES = ["run", "run", "curve", "text", "codes.npz"]

# Words that make a command valid and short. Fuzzed options follow them, and the last value counts.
BASES: dict[str, list[list[str]]] = {
    "presets": [[], ["shapes2d-quick"], ["text-quick"]],
    "data": [[], ["cifar10"]],
    "new": [["my_vae"]],
    "train": [["shapes2d-quick", "--run", "new", *_TRAIN], ["broken.py", "--run", "new", *_TRAIN]],
    "resume": [["run", "--device", "cpu", "--time-limit", "2s", "--threads", "1"]],
    "branch": [["run", "child", "--set", "training.steps=33"]],
    "steer": [["run", "3"]],
    "status": [["."], ["run"]],
    "cancel": [["."]],
    "bench": [["shapes2d-quick", *SMALL, "--device", "cpu", "--models", "1", "--seconds", "0.01"]],
    "target": [["shapes2d-quick", "--run", "new", "--steps", "10", *SMALL, *LIMITS]],
    "simulate": [["run", "--law", "PI(3)"]],
    "sweep": [["shapes2d-quick", "--vary", "control.target=3", "--run", "new", *SMALL, *LIMITS]],
    "curve": [
        [
            *("shapes2d-quick", "--rates", "2,6", "--points", "2", "--bins", "2"),
            *("--examples", "8", "--run", "new", *_TRAIN),
        ],
        ["shapes2d-quick", "--rates", "2,6", "--bins", "2", "--find", "elbo", "--run", "new", *_TRAIN],
    ],
    "search": [
        [
            *("shapes2d-quick", "--vary", "optimiser.rate=1e-4,1e-3", "--trials", "1"),
            *("--prune", "none", "--run", "new", *_TRAIN),
        ]
    ],
    "reproduce": [
        [],
        [
            *("table-short", "--only", "shapes2d-short", "--seeds", "1", "--runs", "new"),
            *("--no-train", "--device", "cpu", "--time-limit", "2s", *SMALL),
        ],
    ],
    "report": [[each, "--device", "cpu", "--examples", "16"] for each in ("run", "curve", ".")],
    "evaluate": [["run", "--examples", "16", "--device", "cpu", "--metrics", "rmig"]],
    "score": [["codes.npz", "--device", "cpu", "--metrics", "rmig"]],
    "export": [["run", "--out", "exported", "--format", "hub"]],
    "dashboard": [[".", "--no-open", "--port", "0"]],
    "traverse": [["run", "--out", "a.png", "--device", "cpu", "--columns", "3"]],
    "reconstruct": [["run", "--out", "a.png", "--device", "cpu", "--columns", "3"]],
    "sample": [["run", "--out", "a.png", "--device", "cpu", "--count", "4"]],
    "interpolate": [["run", "--from", "0", "--to", "1", "--out", "a.png", "--device", "cpu"]],
    "chat": [["text", "--device", "cpu", "--count", "1"]],
}  # fmt: skip

_PATHS = [
    *("", ".", "..", "missing", "empty", "pipe", "zero", "file.txt", "dangling", "run/log.jsonl"),
    *("run", "text", "curve", "codes.npz", "broken.py", "image.png", "weights.pth", "a/b/c"),
    *("a" * 300, "a\nb", "é", "\ud800", "-", "--", "*", "~", "%s", "file.txt/x"),
]
_NUMBERS = [
    *(
        "0",
        "1",
        "-1",
        "2",
        "3.5",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "9" * 400,
        "1_0",
        "0x10",
        "1e-320",
    ),
    *("", "x", "1,2", "2,1", "1,1", "nan,nan", "1e30", "1e29,1e30", "-5,5", "0,0", "1,2,3", ","),
]
_WORDS = [
    *("elbo", "iwae", "fid", "mig", "nonsense", "all", "none", "", ",", "elbo,", "rmig,sap", "é"),
    *("auto", "cpu", "cuda", "cuda:99", "mps", "meta", "torch", "onnx", "hub", "udr", "mauve"),
    *("lpips", "ms_ssim", "prdc", "fd_dinov2", "corpus_bleu", "infomec", "slurm", "local"),
]
_PAIRS = [
    *("dinov2=weights.pth", "dinov2=missing", "dinov2=pipe", "dinov2=.", "dinov2=zero", "mauve=."),
    *(
        "dinov2=",
        "=x",
        "x",
        "nonsense=file.txt",
        "mauve=file.txt",
        "A=run",
        "A=codes.npz",
        "=",
        "A=",
    ),
]
_ASSIGNMENTS = [
    *(
        "control=Auto",
        "steps=600",
        "optimiser.lr=1",
        "control=PI(",
        "model.latents=0",
        "=",
        "x=y=z",
    ),
    *("control.target=1e30", "control.target=0", "training.batch=0", "training.steps=-1", "data=x"),
    *(
        "rates=RateRange(1,2)",
        "rates=none",
        "rates.low=5",
        "rates.bins=3",
        "training.widths=shared",
    ),
    *(
        "training.widths=x",
        "data.join_acts=true",
        "objective.likelihood=Gaussian(0)",
        "model=TextVAE",
    ),
    *("training.precision=fp8", "training.validation=0.9", "optimiser.rate=1e-4:1e-2:log"),
    *(
        "optimiser.rate=1:0",
        "optimiser.rate=1e-4:1e-2",
        "model.latents=2:4",
        "control.target=1,2,x",
    ),
    *("control.target=,", "model.channels=4,8", "training.seed=1,1", "control.target=nan:inf:log"),
    *("model.rate=3", "control=Auto(3),PI(3)", "training.steps=2,3", "model.latents=1e9:2e9"),
]
_POOLS: dict[str, list[str]] = {
    "--set": _ASSIGNMENTS,
    "--vary": _ASSIGNMENTS,
    "--law": ["PI(3)", "Auto", "PI(", "Linear(0,1,5)", "nonsense", "", "PI(kp=nan)", "Constant(1)"],
    "--time-limit": ["0s", "1s", "x", "1e400s", "-1s", "nan", "", "9" * 400, "1.5"],
    "--checkpoint-every": ["0s", "0.01s", "x", "nan", "-1", "", "1e400h"],
    "--time": ["1h", "x", "-1m", ""],
    "--logger": ["csv", "tensorboard", "nonsense", "", "mlflow,csv"],
    "--format": ["hub", "torch", "nonsense", "", "HUB"],
    "--weights": _PAIRS,
    "--method": _PAIRS,
    "--find": ["elbo", "iwae", "fid", "nonsense", ""],
    "--prune": ["elbo", "reconstruction", "none", "auto", "nonsense", ""],
    "--objective": _WORDS,
    "--metrics": _WORDS,
    "--device": _WORDS,
    "--cluster": _WORDS,
    "--partition": _WORDS,
    "--only": ["shapes2d-short", "nonsense", ""],
    "--host": ["127.0.0.1", "localhost", "nonsense", "", "999.1.1.1", "::1"],
    "--port": ["0", "-1", "65536", "x", "1"],
    # Values that would start processes are refused at once or are not drawn.
    "--devices": ["0", "-1", "x", "1", "", "9" * 400, "999999999"],
    "--workers": ["0", "-1", "x", "1", "", "9" * 400, "999999999"],
    "--trials": ["0", "-1", "x", "1", "2", ""],
    "--models": ["0", "-1", "x", "1", "1,x", "9" * 400],
    "--batches": ["1", "0", "x", ""],
    "--seconds": ["0", "-1", "nan", "inf", "x", "0.01"],
    "--steps": ["0", "10", "-1", "x", "9" * 400],
    "--iwae": ["0", "1", "-1", "x", "1e9"],
    "--factors": [*_PATHS, "file.txt:a", "codes.npz:a,b", "codes.npz:", ":"],
    "--examples": ["0", "1", "2", "8", "-1", "x", "9" * 400],
    "--points": ["2", "1", "3", "0", "x", "1001", "9" * 400],
    "--bins": ["1", "2", "3", "4", "8", "257", "x"],
    "--range": _NUMBERS,
    "--rates": _NUMBERS,
    "--fid": ["0", "1", "-1", "x", "2"],
}
_PATH_OPTIONS = {
    *("--run", "--out", "--data-root", "--runs", "--compare", "--replay", "--image", "--from"),
    *("--to", "--topic"),
}


@cache
def read_options() -> dict[str, list[tuple[str, bool]]]:
    """Return the options of each command, and whether each is a flag."""
    import typer

    from controlvae.lab.cli.commands import app

    group: Any = typer.main.get_command(app)
    return {
        name: [
            (option, bool(getattr(param, "is_flag", False)))
            for param in command.params
            if param.param_type_name == "option"
            for option in param.opts
            if option.startswith("--")
        ]
        for name, command in group.commands.items()
    }


def draw_value(draw: random.Random, option: str) -> str:
    """Return a value for an option: usual, odd, or meant for another one."""
    if option not in _POOLS or (draw.random() < 0.1 and not _starts_processes(option)):
        pool = _PATHS if option in _PATH_OPTIONS else _NUMBERS
        return draw.choice(pool if draw.random() < 0.9 else _PATHS + _NUMBERS + _WORDS)
    return draw.choice(_POOLS[option])


def draw_command(draw: random.Random) -> list[str]:
    """Return the words of a command line."""
    name = draw.choice(sorted(BASES))
    words = list(draw.choice(BASES[name]))
    if draw.random() < 0.25 and words and not words[0].startswith("-"):  # its first argument
        words[0] = draw.choice([*_PATHS, *_IMAGES, *_WORDS, "shapes2d-quick", "nonsense"])
    if draw.random() < 0.05 and words:
        del words[draw.randrange(len(words))]
    options = read_options()[name]
    count = min(len(options), draw.choice([0, 1, 1, 1, 2, 2, 3]))
    for option, is_flag in draw.sample(options, count):
        words += [option] if is_flag else [option, draw_value(draw, option)]
    if draw.random() < 0.03:
        words.append(draw.choice(["--nonsense", "--help", "extra", "--set", "-h", "--debug"]))
    return [name, *_forbidden(name, words)]


def _starts_processes(option: str) -> bool:
    return option in ("--devices", "--workers", "--trials", "--iwae", "--models", "--steps")


def _forbidden(name: str, words: list[str]) -> list[str]:
    """Return the words without what starts jobs, trains the paper's tables or listens outside."""
    words = [word for word in words if word not in ("--wait", "--thorough", "--open", "--train")]
    if "--cluster" in words:
        words.append("--dry-run")
    if name == "bench" and "--seconds" not in words:
        words += ["--seconds", "0.01"]
    return words
