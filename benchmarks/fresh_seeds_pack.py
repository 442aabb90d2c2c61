"""Archive of the runs of `fresh_seeds.py`: logs, scores and weights in a few small files."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
from fresh_seeds_scores import MEASURED, SCORED, write_atomically, write_json
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.serialization import from_dict
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder, find_runs

RUNS = "runs.json.gz"
MAX_BYTES = 15 << 20  # of a file with weights
LOGGED = ("step", "kl", "target", "beta", "reconstruction")
SNAPSHOTS = "measured-*.json"  # of weights at an earlier step


def pack_runs(runs: Path, target: Path, weights: bool) -> None:
    """Write logs, measurements and scores of all runs to `runs.json.gz`.

    Args:
        runs: Folder of the runs.
        target: Folder to write to.
        weights: Also write the weights of each run's latest checkpoint, in `weights-N.safetensors`.
    """
    target.mkdir(parents=True, exist_ok=True)
    folders = find_runs(runs)
    packed = [pack_run(folder) for folder in folders]
    content = gzip.compress(json.dumps(packed).encode())
    write_atomically(target / RUNS, lambda file: file.write(content))
    measured, scored = (sum(key in run for run in packed) for key in ("gpu", "cpu"))
    line = f"{len(packed)} runs, {measured} measured, {scored} scored"
    if weights:
        line += f", {write_weights(folders, target)} with weights"
    print(line, flush=True)


def pack_run(folder: RunFolder) -> dict[str, Any]:
    """Return everything about a run but its weights."""
    manifest = folder.manifest()
    run: dict[str, Any] = {
        **identify(folder),
        "versions": manifest["versions"],
        "experiment": manifest["experiment"],
        "log": [shorten_record(record) for record in folder.records()],
        "events": folder.events(),
    }
    for key, name in (("gpu", MEASURED), ("cpu", SCORED)):
        if (folder.path / name).exists():
            run[key] = json.loads((folder.path / name).read_text())
    snapshots = [json.loads(path.read_text()) for path in sorted(folder.path.glob(SNAPSHOTS))]
    if snapshots:
        run["snapshots"] = {str(snapshot["step"]): snapshot for snapshot in snapshots}
    return run


def identify(folder: RunFolder) -> dict[str, Any]:
    """Return the preset and the seed of a run folder."""
    return {
        "preset": folder.path.parent.name,
        "seed": int(folder.path.name.removeprefix("seed-")),
    }


def shorten_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a log line that the report uses, rounded to six digits."""
    rounded = {
        name: float(f"{value:.6g}") if isinstance(value := record[name], float) else value
        for name in LOGGED
    }
    nats = [float(f"{value:.4g}") for value in record["kl_per_latent"]]
    return {**rounded, "kl_per_latent": nats}


def write_weights(folders: list[RunFolder], target: Path) -> int:
    """Write the latest weights of runs in files of at most 15 MiB. Return the number of runs."""
    count = 0
    for number, group in enumerate(group_by_size(load_weights(folders)), start=1):
        tensors: dict[str, Tensor] = {}
        for prefix, weights in group.items():
            tensors |= {f"{prefix}/{name}": value for name, value in weights.items()}
        path = target / f"weights-{number}.safetensors"
        safetensors.torch.save_file(tensors, path)
        path.chmod(0o644)  # others may fetch it
        count += len(group)
    return count


def load_weights(folders: list[RunFolder]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield PRESET/SEED/STEP and the weights of each run that has a checkpoint."""
    for folder in folders:
        try:
            saved, _ = checkpoint.load_latest(folder.checkpoints)
        except (OSError, UserError) as error:  # training may be replacing it
            print(f"{folder.path}: weights are left out: {error!r}")
            continue
        if saved is not None:
            preset, seed = identify(folder).values()
            yield f"{preset}/{seed}/{saved.step}", strip_prefix(saved.tensors, "model.")


def group_by_size(
    models: Iterator[tuple[str, dict[str, Tensor]]],
) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Yield groups of models that fit into one file each."""
    group: dict[str, dict[str, Tensor]] = {}
    total = 0
    for name, weights in models:
        size = sum(value.numel() * value.element_size() for value in weights.values())
        if group and total + size > MAX_BYTES:
            yield group
            group, total = {}, 0
        group[name], total = weights, total + size
    if group:
        yield group


def unpack_runs(packed: Path, runs: Path) -> None:
    """Create run folders from an archive with weights, to measure and score them elsewhere.

    They cannot be trained further: the archive has no optimiser state.

    Args:
        packed: Folder that `pack_runs` wrote.
        runs: Folder to create the runs in.
    """
    weights: dict[tuple[str, int], tuple[int, dict[str, Tensor]]] = {}
    for path in sorted(packed.glob("weights-*.safetensors")):
        for key, value in safetensors.torch.load_file(path).items():
            preset, seed, step, name = key.split("/")
            weights.setdefault((preset, int(seed)), (int(step), {}))[1][f"model.{name}"] = value
    for run in json.loads(gzip.decompress((packed / RUNS).read_bytes())):
        folder = RunFolder(runs / run["preset"] / f"seed-{run['seed']}")
        folder.create(from_dict(Experiment, run["experiment"]), "unpacked")
        if (run["preset"], run["seed"]) in weights:
            step, tensors = weights[run["preset"], run["seed"]]
            checkpoint.save(folder.checkpoints, checkpoint.Checkpoint(step, tensors, {}))
        write_lines(folder.log_file, run["log"])
        write_lines(folder.events_file, run["events"])
        for key, name in (("gpu", MEASURED), ("cpu", SCORED)):
            if key in run:
                write_json(folder.path / name, run[key])


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records as lines of JSON."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
