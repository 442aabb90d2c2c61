"""Model card and configuration of an exported run, in the form that Hugging Face's hub takes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from controlvae import __version__
from controlvae.lab.exports.parts import ExportParts
from controlvae.lab.runs.folder import mean_of_last_tenth
from controlvae.lab.runs.loaded import LoadedRun

_TAGS = ("pytorch", "vae", "variational-autoencoder", "controlvae")


def model_config(run: LoadedRun, parts: ExportParts) -> dict[str, Any]:
    """Return the content of `config.json`: architecture, inputs and outputs, every setting.

    Absolute paths of the settings are cut to their last part, because the file is for publication.
    """
    return {
        "model_type": "controlvae",
        "architectures": [type(parts.model).__name__],
        **({"latents": _latents(parts)} if parts.networks else {}),
        "inputs": {
            network.name: {
                name: {"shape": ["batch", *value.shape[1:]], "dtype": _dtype_name(value.dtype)}
                for name, value in network.inputs.items()
            }
            for network in parts.networks
        },
        "outputs": {network.name: list(network.outputs) for network in parts.networks},
        "step": run.step,
        "experiment": _shorten_paths(run.folder.manifest().get("experiment", {})),
        "versions": {"controlvae": __version__, "torch": torch.__version__},
    }


def model_card(run: LoadedRun, parts: ExportParts, files: Sequence[str]) -> str:
    """Return the content of `README.md`: front matter for the hub, and a text.

    Args:
        run: Exported run.
        parts: Its networks.
        files: Names of the exported files.
    """
    return "\n\n".join(
        [
            _front_matter(run),
            f"# {run.experiment.name}",
            _introduction(run, parts),
            "## Data",
            f"{_data_text(run)}\n\nThe model takes {parts.input_text}. The decoder returns "
            f"{parts.output_text}.",
            "## Measurements",
            _measurement_table(run),
            "## How to load it",
            *_loading_texts(parts, files),
            "## License\n\nNot chosen yet: add a `license:` line at the top of this file.",
        ]
    )


def _front_matter(run: LoadedRun) -> str:
    """Return the YAML that the hub reads. Values are JSON, which is YAML, too."""
    data, kind = _data_settings(run), _task(run)
    lines = ["---", "# license: choose one, such as apache-2.0", "library_name: pytorch", "tags:"]
    lines += [f"- {tag}" for tag in _TAGS]
    metrics = _measurements(run)
    if metrics:
        lines += [
            "model-index:",
            f"- name: {json.dumps(run.experiment.name)}",
            "  results:",
            "  - task:",
            f"      type: {kind}",
            "    dataset:",
            f"      type: {json.dumps(data)}",
            f"      name: {json.dumps(data)}",
            "    metrics:",
        ]
    for name, value, text in metrics:
        lines += [
            f"    - type: {name}",
            f"      name: {json.dumps(text, ensure_ascii=False)}",
            f"      value: {json.dumps(value)}",
        ]
    return "\n".join([*lines, "---"])


def _introduction(run: LoadedRun, parts: ExportParts) -> str:
    experiment, records = run.experiment, run.log
    target = records[-1].get("target") if records else None
    if target is None:
        control = f"The weight of its KL followed `{experiment.control}`."
    else:
        controlled = getattr(experiment, "controlled_quantity", "kl")
        name = {"kl": "KL", "tc": "total correlation"}.get(controlled, controlled)
        control = (
            f"A controller, `{experiment.control}`, moved the weight β during training, with a "
            f"target of {target:g} nats per example for the {name}."
        )
    return (
        f"A variational autoencoder (`{type(parts.model).__name__}`){_with_latents(parts)}, trained for {run.step:,} of {experiment.training.steps:,} steps with "
        f"controlvae {__version__}. {control} "
        "`config.json` has every setting."
    )


def _measurements(run: LoadedRun) -> list[tuple[str, float, str]]:
    """Return name, value and description of the numbers of a run.

    Scores of an evaluation belong to the exported step. The others are means over the last tenth of
    training.
    """
    found: list[tuple[str, float, str]] = []
    metrics, records = run.metrics or {}, run.log
    if metrics.get("step") == run.step:
        split = metrics.get("split", "evaluation")
        for name, text in (("elbo", "ELBO"), ("kl", "KL"), ("reconstruction", "Reconstruction")):
            if isinstance(metrics.get(name), int | float):
                found.append((name, metrics[name], f"{text}, nats per example ({split})"))
    names = {"elbo": "ELBO", "kl": "KL", "reconstruction": "Reconstruction", "beta": "β"}
    for name, text in names.items() if records else ():
        unit = "" if name == "beta" else ", nats per example"
        value = mean_of_last_tenth(records, name)
        found.append((f"train_{name}", value, f"{text}{unit} (training, last tenth)"))
    return found


def _measurement_table(run: LoadedRun) -> str:
    rows = [(text, f"{value:.4g}") for _, value, text in _measurements(run)]
    target = run.log[-1].get("target") if run.log else None
    if target is not None:
        rows.insert(0, ("Target, nats per example", f"{target:.4g}"))
    if not rows:
        return "The run has no log."
    return "\n".join(["| | |", "| --- | --- |", *(f"| {text} | {value} |" for text, value in rows)])


def _loading_texts(parts: ExportParts, files: Sequence[str]) -> list[str]:
    """Return a text and an example for each kind of file."""
    texts = []
    if parts.networks:
        encoder, decoder = parts.networks
        more = ", x" if "tokens" in decoder.inputs else ""
        result = decoder.outputs[0]
    if "encoder.pt2" in files:
        texts.append(
            "With torch alone. Batches may have any size. Open only `.pt2` files that you trust: "
            "torch may run code from them.\n\n"
            "```python\nimport torch\n\n"
            'encoder = torch.export.load("encoder.pt2").module()\n'
            'decoder = torch.export.load("decoder.pt2").module()\n'
            "mean, log_variance = encoder(x)\n"
            f"{result} = decoder(mean{more})\n```"
        )
    if "encoder.onnx" in files:
        feed = ", ".join(f'"{name}": {value}' for name, value in _feed(decoder.inputs))
        texts.append(
            "With onnxruntime, where `x` is a NumPy array:\n\n"
            "```python\nimport onnxruntime\n\n"
            'encoder = onnxruntime.InferenceSession("encoder.onnx")\n'
            'decoder = onnxruntime.InferenceSession("decoder.onnx")\n'
            f'mean, log_variance = encoder.run(None, {{"{next(iter(encoder.inputs))}": x}})\n'
            f"({result},) = decoder.run(None, {{{feed}}})\n```"
        )
    if "model.safetensors" in files:
        texts.append(
            "The weights alone, as a dictionary of tensors for `load_state_dict`:\n\n"
            "```python\nfrom safetensors.torch import load_file\n\n"
            'weights = load_file("model.safetensors")\n```'
        )
    return texts


def _feed(inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, "mean" if name == "z" else "x") for name in inputs]


def _with_latents(parts: ExportParts) -> str:
    return f" with {_latents(parts)} latents" if parts.networks else ""


def _latents(parts: ExportParts) -> int:
    """Return the number of latents of an example."""
    return int(parts.networks[1].inputs["z"][0].numel())


def _task(run: LoadedRun) -> str:
    if hasattr(run.examples, "vocabulary"):
        return "text-generation"
    return "unconditional-image-generation" if len(run.shape) == 3 else "feature-extraction"


def _data_settings(run: LoadedRun) -> str:
    """Return the name of the data: the kind of its settings, and the name of its file."""
    settings = run.folder.manifest().get("experiment", {}).get("data") or {}
    kind = str(settings.get("type", "data"))
    path = settings.get("path")
    return f"{kind} ({Path(path).name})" if isinstance(path, str) else kind


def _data_text(run: LoadedRun) -> str:
    source = run.examples.source if len(run.examples) else ""
    origin = f": {source}" if source and "/" not in source else ""  # no paths of this machine
    count = f", {len(run.examples):,} examples" if len(run.examples) else ""
    return f"Trained on {_data_settings(run)}{origin}{count}."


def _shorten_paths(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shorten_paths(inner) for name, inner in value.items()}
        case list():
            return [_shorten_paths(inner) for inner in value]
        case str() if Path(value).is_absolute():
            return Path(value).name
    return value


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
