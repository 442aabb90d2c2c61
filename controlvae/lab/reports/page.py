"""One self-contained HTML file about runs: curves, pictures, numbers, and the command that makes them again."""

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from controlvae import __version__
from controlvae.lab.config import PRESETS, Experiment, method_differences, to_dict
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.io import write_text
from controlvae.lab.plots.curves import (
    Trace,
    plot_beta,
    plot_controlled_term,
    plot_critic_accuracy,
    plot_latent_kl,
    plot_reconstruction,
)
from controlvae.lab.plots.figure_files import disable_math_text, read_step
from controlvae.lab.plots.mutual_information import (
    describe_dominant_factor,
    dominant_factors,
    plot_mutual_information,
)
from controlvae.lab.reports.dialog_section import perplexities, responses_section
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.markup import warning
from controlvae.lab.reports.sections import BIASED, biased, image_table, number_table, score_table
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws.log_domain import LogDomainFeedback

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2a33; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; } p { max-width: 48rem; }
figure { margin: 0 0 1.5rem; } figure > svg { width: 100%; height: auto; } figure > img { max-width: 100%; }
figcaption { color: #55656f; font-size: .9rem; max-width: 48rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; margin: .5rem 0 1.5rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; border-bottom: 1px solid #dde4e8; }
th:first-child, td:first-child, .words th, .words td { text-align: left; vertical-align: top; }
.words { width: 100%; table-layout: fixed; } .wide { overflow-x: auto; }
.warning { background: #fdf1dc; border-left: 4px solid #d08700; padding: .6rem 1rem; margin: .6rem 0; }
pre { background: #f2f5f7; padding: .7rem 1rem; white-space: pre-wrap; font-size: .85rem; }
.quiet { color: #55656f; }
.beside { display: flex; flex-wrap: wrap; gap: 0 1rem; } .beside > figure { flex: 1 1 24rem; max-width: 100%; }
"""

# Pictures of a run by the names of their files; those that several runs are compared by, and the others.
_COMPARED = {
    "reconstruction.png": "Data above, reconstructions from the posterior mean below.",
    "samples*.png": "Decoded from the prior, N(0, I).",
}
_OWN = {
    "interpolation*.png": "From one example to another, straight through the latent space; they stand at the ends.",
    "traversal*.png": "Each row moves one latent and leaves the others; rows are ordered by KL.",
    "traversal*.gif": "The same in motion: each picture moves one latent there and back.",
}

_RECONSTRUCTION = (
    "Reconstruction error on the training batches; dashed, its set point where a law has one."
)
_LENGTHS = "A batch holds sentences of like length, so it goes up and down with theirs."
_CRITIC = (
    "The share the critic tells right of joint and shuffled latents; near 0.5 there is little left to tell. Its total "
    "correlation is an estimate, not a bound: a critic that is behind may answer below zero, and the law takes that as "
    "it is."
)


def write_report(folders: Sequence[RunFolder], path: Path) -> Path:
    """Writes the page. Reads run folders and nothing else."""
    names = _names(folders)
    traces = [Trace.of(name, folder) for name, folder in zip(names, folders, strict=True)]
    drawn = [trace for trace in traces if trace.records]
    parts = [
        f"<h1>{html.escape(', '.join(names))}</h1>",
        f'<p class="quiet">controlvae {__version__}</p>',
    ]
    parts += [
        warning(f"{name}: {line}")
        for name, f in zip(names, folders, strict=True)
        for line in run_warnings(f)
    ]
    for held in ("kl", "tc"):
        name = QUANTITY_LABELS[held]
        if alike := [trace for trace in drawn if held in trace.records[-1]]:
            caption = f"{name} on the training batches; dashed, its set point. A point is the mean over one log window."
            off = [trace.name for trace in alike if held == "tc" and biased(trace)]
            caption += f" Of {'; '.join(off)} {BIASED}." if off else ""
            parts.append(
                _drawing(plot_controlled_term(alike, held), caption[0].upper() + caption[1:])
            )
    parts += [
        number_table(names, folders),
        score_table(names, folders),
        image_table(names, folders),
    ]
    parts.append(_commands(folders))
    if len(folders) > 1:
        parts.append(_side_by_side(names, folders))
    if len(folders) > 1 and drawn:
        parts.append(_drawing(plot_beta(drawn), "The weight."))
        parts.append(_drawing(plot_reconstruction(drawn), _RECONSTRUCTION))
    for trace, folder in zip(traces, folders, strict=True):
        parts.append(_section(trace, folder, alone=len(folders) == 1))
    title = html.escape(", ".join(names))
    body = "\n".join(parts)
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n",
    )
    return path


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """The preset's name; where that leaves two alike, the seed if they differ in nothing else, and else the folder."""
    experiments = [folder.experiment() for folder in folders]
    names = [experiment.name for experiment in experiments]
    if len(set(names)) == len(names):
        return names
    firsts = {e.name: e for e in reversed(experiments)}
    seeded = [f"{e.name}, seed {e.training.seed}" for e in experiments]
    if len(set(seeded)) == len(seeded) and not any(
        method_differences(firsts[e.name], e) for e in experiments
    ):
        return seeded
    return [str(folder.path) for folder in folders]


def _side_by_side(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """Reconstructions of all runs one below the other, samples beside each other: where one look takes them in."""
    rows = []
    for files, words in _COMPARED.items():
        found = [
            (name, path)
            for name, f in zip(names, folders, strict=True)
            for path in sorted(f.figures.glob(files))
        ]
        rows.append("".join(_picture(path, f"{name}. {words}") for name, path in found))
    strips, grids = rows
    return (
        f'<h2>Pictures side by side</h2>{strips}<div class="beside">{grids}</div>'
        if strips or grids
        else ""
    )


def _section(trace: Trace, folder: RunFolder, alone: bool) -> str:
    experiment, metrics = folder.experiment(), folder.metrics() or {}
    parts = [
        f"<h2>{html.escape(trace.name)}</h2>",
        f"<p>{html.escape(_about(experiment, metrics))}</p>",
    ]
    factors = dominant_factors(metrics)
    if trace.records:
        logarithmic = isinstance(experiment.control, LogDomainFeedback)
        beside = "" if logarithmic or experiment.control.open_loop else " and its two parts"
        lengths = f" {_LENGTHS}" if experiment.objective.likelihood == "tokens" else ""
        named = (
            f" At step {metrics['step']:,} a latent is named by {describe_dominant_factor(metrics)}."
            if factors
            else ""
        )
        parts += [
            _drawing(
                plot_beta([trace], logarithmic),
                f"The weight of the {QUANTITY_LABELS[trace.weighted]}{beside}.",
            ),
            _drawing(plot_reconstruction([trace]), _RECONSTRUCTION + lengths),
            *(
                [_drawing(plot_critic_accuracy(trace), _CRITIC)]
                if "critic_accuracy" in trace.records[-1]
                else []
            ),
            _drawing(
                plot_latent_kl(trace, factors),
                f"KL of each latent: one with nats lifts off zero.{named}",
            ),
        ]
    if (heat := plot_mutual_information(metrics)) is not None:
        parts.append(
            _drawing(
                heat,
                "Mutual information of each factor with each latent; latents are ordered by KL.",
            )
        )
    for files, words in ({**_COMPARED, **_OWN} if alone else _OWN).items():
        parts += [_picture(path, words) for path in sorted(folder.figures.glob(files))]
    if "text" in metrics:
        parts.append(_sentences(metrics["text"]))
    if "dialog" in metrics:
        parts.append(responses_section(metrics["dialog"]))
    settings = json.dumps(to_dict(experiment), indent=2, ensure_ascii=False)
    versions = ", ".join(f"{k} {v}" for k, v in dict(folder.manifest().get("versions", {})).items())
    parts.append(
        f"<details><summary>Settings and versions</summary><pre>{html.escape(settings)}</pre>"
        f'<p class="quiet">{html.escape(versions)}</p></details>'
    )
    return "\n".join(parts)


def _about(experiment: Experiment, metrics: dict[str, Any]) -> str:
    """What it is and of what; a preset's own words only where nothing but its length and seed was changed."""
    named = PRESETS.get(experiment.name)
    as_named = named is not None and replace(experiment, training=named.training) == named
    own = as_named or named is None  # a sweep names its runs itself
    what = (
        experiment.about
        if own
        else f"The preset {experiment.name} with other settings, given below."
    )
    return f"{what.rstrip('.')}. Data: {metrics['data']}." if "data" in metrics else what


def _sentences(text: dict[str, Any]) -> str:
    """What a model of sentences writes, and how well it reads."""
    rows = "".join(f"<li>{html.escape(line)}</li>" for line in text["samples"])
    paper = (
        f"The paper's curve: {format_number(text['paper_elbo'])} ({text['paper_elbo_of']}). "
        if "paper_elbo" in text
        else ""
    )
    numbers = (
        f"{perplexities(text)} ELBO per token {format_number(text['elbo_per_token'], 3)} nats. {paper}"
        f"Of {text['written']} sentences from {text['written_from']}: "
        f"distinct words {text['distinct_1']:.3f}, pairs {text['distinct_2']:.3f}; "
        f"self-BLEU-2 {text['self_bleu_2']:.3f}, self-BLEU-3 {text['self_bleu_3']:.3f}."
    )
    said = f'<h3>Sentences from the prior</h3><ol>{rows}</ol><p class="quiet">{html.escape(numbers)}</p>'
    pairs = [(pair["sentence"], pair["read_back"]) for pair in text.get("read_back", ())]
    if not pairs:  # evaluated by a version that did not read back
        return said
    cells = "".join(
        f"<tr>{''.join(f'<td>{html.escape(words)}</td>' for words in pair)}</tr>" for pair in pairs
    )
    heads = "<tr><th>sentence</th><th>read back from its code</th></tr>"
    return (
        f'{said}<h3>What a code keeps</h3><table class="words">{heads}{cells}</table><p class="quiet">The likeliest '
        f"words given the mean of each sentence's posterior. Where the code is not used, all are alike.</p>"
    )


def _commands(folders: Sequence[RunFolder]) -> str:
    lines = dict.fromkeys(str(folder.manifest().get("command", "")) for folder in folders)
    return f"<h3>To make it again</h3><pre>{html.escape(chr(10).join(lines))}</pre>"


def _picture(path: Path, caption: str) -> str:
    """A picture of a run's folder; where it says of which step it is, so do its words: others may be of a later one."""
    step = read_step(path)
    encoded = base64.b64encode(path.read_bytes()).decode()
    words = html.escape(caption if step is None else f"{caption} At step {step:,}.")
    source = f'<img alt="{words}" src="data:image/{path.suffix[1:]};base64,{encoded}">'
    return f"<figure>{source}<figcaption>{words}</figcaption></figure>"


def _drawing(figure: Figure, caption: str) -> str:
    """A figure as inline SVG: sharp at any size, and nothing to fetch."""
    buffer = io.StringIO()
    disable_math_text(figure)
    with mpl.rc_context({"svg.hashsalt": "controlvae"}):  # the same runs give the same file
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"
