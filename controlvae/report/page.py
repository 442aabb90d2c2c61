"""One self-contained HTML file about runs: curves, pictures, numbers, and the command that makes them again."""

import base64
import html
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from controlvae import __version__
from controlvae.control.collapse import REMEDY, says_nothing
from controlvae.control.logarithmic import Logarithmic
from controlvae.experiments import PRESETS, Experiment, RunFolder, to_plain
from controlvae.experiments.files import write_text
from controlvae.experiments.folder import look_up
from controlvae.report.figures import (
    HELD,
    Trace,
    beta_figure,
    critic_figure,
    held_figure,
    latents_figure,
    nats,
    reconstruction_figure,
)
from controlvae.report.image_table import image_table
from controlvae.report.information import information_figure, latent_factors, naming
from controlvae.report.pictures import as_written
from controlvae.report.responses import perplexities, responses_section
from controlvae.report.tables import attributed, data_words
from controlvae.report.trained import so_many

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
.words { width: 100%; table-layout: fixed; }
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

# Of codes, where factors are known: heading, and where the score is in metrics.json.
_SCORES = {
    "MIG, sampled": "mig_sampled.score",
    "RMIG": "rmig.score",
    "MIG, histogram": "mig_histogram.score",
    "DCI, disentanglement": "dci.disentanglement",
    "DCI, completeness": "dci.completeness",
    "DCI, informativeness": "dci.informativeness",
    "SAP": "sap.score",
    "SAP, continuous": "sap_continuous.score",
    "FactorVAE score": "factor_vae_score.score",
    "β-VAE score": "beta_vae_score.score",
    "modularity": "modularity.score",
}
_REACH = ("target out of reach", "target in reach again", "target moved")  # events; the last of them stands
_RECONSTRUCTION = "Reconstruction error on the training batches; dashed, its set point where a law has one."
_LENGTHS = "A batch holds sentences of like length, so it goes up and down with theirs."
_CRITIC = (
    "The share the critic tells right of joint and shuffled latents; near 0.5 there is little left to tell. Its total "
    "correlation is an estimate, not a bound: a critic that is behind may answer below zero, and the law takes that as "
    "it is."
)


def write_report(folders: Sequence[RunFolder], path: Path) -> Path:
    """Writes the page. Reads run folders and nothing else."""
    names = _names(folders)
    traces = [Trace(name, folder.records()) for name, folder in zip(names, folders, strict=True)]
    drawn = [trace for trace in traces if trace.records]
    parts = [f"<h1>{html.escape(', '.join(names))}</h1>", f'<p class="quiet">controlvae {__version__}</p>']
    parts += [_warning(f"{name}: {line}") for name, f in zip(names, folders, strict=True) for line in warnings_of(f)]
    for held in ("kl", "tc"):
        name = HELD[held]
        if alike := [trace for trace in drawn if held in trace.records[-1]]:
            caption = f"{name} on the training batches; dashed, its set point. A point is the mean over one log window."
            parts.append(_drawing(held_figure(alike, held), caption[0].upper() + caption[1:]))
    parts += [_numbers(names, folders), _disentanglement(names, folders)]
    parts.append(image_table(names, [folder.metrics() for folder in folders]))
    parts.append(_commands(folders))
    if len(folders) > 1:
        parts.append(_side_by_side(names, folders))
    if len(folders) > 1 and drawn:
        parts.append(_drawing(beta_figure(drawn), "The weight."))
        parts.append(_drawing(reconstruction_figure(drawn), _RECONSTRUCTION))
    for trace, folder in zip(traces, folders, strict=True):
        parts.append(_section(trace, folder, alone=len(folders) == 1))
    title = html.escape(", ".join(names))
    body = "\n".join(parts)
    write_text(path, f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
                     f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n")  # fmt: skip
    return path


def warnings_of(folder: RunFolder) -> list[str]:
    """What a reader must know before trusting a run's numbers."""
    steps, last = folder.experiment().training.steps, folder.last_record()
    done = last["step"] if last else 0
    unfinished = [f"not finished: step {done:,} of {steps:,}"] if done < steps else []
    return unfinished + troubles_of(folder)


def troubles_of(folder: RunFolder) -> list[str]:
    """What has happened to a run, or is wrong with it, wherever it stands."""
    lines, last = [], folder.last_record()
    reach = [event for event in folder.events() if event["event"] in _REACH]
    if reach and reach[-1]["event"] == "target out of reach":
        e = reach[-1]
        held = next(name for name in HELD if name in e)
        lines.append(
            f"target out of reach: from about step {e['step']:,} on, β was at its bound {e.get('bound', e['beta']):g} "
            f"with {HELD[held]} {nats(e[held])} against a target of {e['target']:g}; move the target or widen the "
            f"bounds"
        )
    if moved := [event for event in folder.events() if event["event"] == "target moved"]:
        times = f" {len(moved)} times, last" if len(moved) > 1 else ""
        e = moved[-1]
        lines.append(f"its target was moved by hand{times} to {e['target']:g} nats at step {e['step']:,}")
    code = [event for event in folder.events() if event["event"].startswith("code ")]
    if code and code[-1]["event"] == "code collapsed":
        e = code[-1]
        since = e.get("since", e["step"])
        lines.append(f"the code has collapsed: KL {e['kl']:.3f} nats from about step {since:,} on; {REMEDY}")
    target = last.get("target") if last else None
    if last is not None and target is not None and last.get("tc_sd", -math.inf) > target:
        lines.append(_below_the_noise(Trace("", folder.records())))
    metrics = folder.metrics() or {}
    if "active_units" in metrics and (words := says_nothing(metrics["kl"], metrics["active_units"])) is not None:
        lines.append(words)
    untested = (metrics.get("test") or {}).get("skipped")
    if untested:
        lines.append(f"measured on what it was trained on and on no test part: {untested}")
    lines += [f"diverged at step {event['step']:,}" for event in folder.events() if event["event"] == "diverged"]
    return lines


def _below_the_noise(trace: Trace) -> str:
    """Of a total correlation that is held at less than its estimate scatters: whether its mean is."""
    last = trace.records[-1]
    target, scatter, distance = last["target"], last["tc_sd"], trace.column("tc") - trace.column("target")
    off = float(np.nanmean(distance[-max(1, len(distance) // 10) :]))
    noise = 2 * scatter / math.sqrt(max(1.0, last["step"] / 10))  # of a mean over a tenth of the steps
    words = f"the target {target:g} lies below the noise of the estimate, whose standard deviation from batch to "
    words += f"batch is {scatter:.2g}"
    if abs(off) <= max(0.1 * target, noise):
        return f"{words}: the mean is held, a single batch says little"
    side = "above" if off > 0 else "below"
    return f"{words}, and its mean is not held: over the last tenth it lies {abs(off):.2g} nats {side} the target"


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """The preset's name, and the seed or the folder where that leaves two alike."""
    experiments = [folder.experiment() for folder in folders]
    names = [experiment.name for experiment in experiments]
    if len(set(names)) < len(names):
        names = [f"{e.name}, seed {e.training.seed}" for e in experiments]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    return names


def _side_by_side(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """Reconstructions of all runs one below the other, samples beside each other: where one look takes them in."""
    rows = []
    for files, words in _COMPARED.items():
        found = [(name, path) for name, f in zip(names, folders, strict=True) for path in sorted(f.figures.glob(files))]
        rows.append("".join(_picture(path, f"{name}. {words}") for name, path in found))
    strips, grids = rows
    return f'<h2>Pictures side by side</h2>{strips}<div class="beside">{grids}</div>' if strips or grids else ""


def _section(trace: Trace, folder: RunFolder, alone: bool) -> str:
    experiment, metrics = folder.experiment(), folder.metrics() or {}
    parts = [f"<h2>{html.escape(trace.name)}</h2>", f"<p>{html.escape(_about(experiment, metrics))}</p>"]
    factors = latent_factors(metrics)
    if trace.records:
        logarithmic = isinstance(experiment.control, Logarithmic)
        beside = "" if logarithmic or experiment.control.open_loop else " and its two parts"
        lengths = f" {_LENGTHS}" if experiment.objective.likelihood == "tokens" else ""
        named = f" At step {metrics['step']:,} a latent is named by {naming(metrics)}." if factors else ""
        parts += [
            _drawing(beta_figure([trace], logarithmic), f"The weight of the {HELD[trace.held]}{beside}."),
            _drawing(reconstruction_figure([trace]), _RECONSTRUCTION + lengths),
            *([_drawing(critic_figure(trace), _CRITIC)] if "critic_accuracy" in trace.records[-1] else []),
            _drawing(latents_figure(trace, factors), f"KL of each latent: one with nats lifts off zero.{named}"),
        ]
    if (heat := information_figure(metrics)) is not None:
        parts.append(_drawing(heat, "Mutual information of each factor with each latent; latents are ordered by KL."))
    for files, words in ({**_COMPARED, **_OWN} if alone else _OWN).items():
        parts += [_picture(path, words) for path in sorted(folder.figures.glob(files))]
    if "text" in metrics:
        parts.append(_sentences(metrics["text"]))
    if "dialog" in metrics:
        parts.append(responses_section(metrics["dialog"]))
    settings = json.dumps(to_plain(experiment), indent=2, ensure_ascii=False)
    versions = ", ".join(f"{k} {v}" for k, v in dict(folder.manifest().get("versions", {})).items())
    parts.append(f"<details><summary>Settings and versions</summary><pre>{html.escape(settings)}</pre>"
                 f'<p class="quiet">{html.escape(versions)}</p></details>')  # fmt: skip
    return "\n".join(parts)


def _about(experiment: Experiment, metrics: dict[str, Any]) -> str:
    """What it is and of what; a preset's own words only where nothing but its length and seed was changed."""
    named = PRESETS.get(experiment.name)
    as_named = named is not None and replace(experiment, training=named.training) == named
    own = as_named or named is None  # a sweep names its runs itself
    what = experiment.about if own else f"The preset {experiment.name} with other settings, given below."
    return f"{what.rstrip('.')}. Data: {metrics['data']}." if "data" in metrics else what


def _sentences(text: dict[str, Any]) -> str:
    """What a model of sentences writes, and how well it reads."""
    rows = "".join(f"<li>{html.escape(line)}</li>" for line in text["samples"])
    paper = f"The paper's curve: {text['paper_elbo']:.2f} ({text['paper_elbo_of']}). " if "paper_elbo" in text else ""
    numbers = (
        f"{perplexities(text)} ELBO per token {text['elbo_per_token']:.3f} nats. {paper}Of {text['written']} sentences "
        f"from {text['written_from']}: distinct words {text['distinct_1']:.3f}, pairs {text['distinct_2']:.3f}; "
        f"self-BLEU-2 {text['self_bleu_2']:.3f}, self-BLEU-3 {text['self_bleu_3']:.3f}."
    )
    said = f'<h3>Sentences from the prior</h3><ol>{rows}</ol><p class="quiet">{html.escape(numbers)}</p>'
    pairs = [(pair["sentence"], pair["read_back"]) for pair in text.get("read_back", ())]
    if not pairs:  # evaluated by a version that did not read back
        return said
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(words)}</td>' for words in pair)}</tr>" for pair in pairs)
    heads = "<tr><th>sentence</th><th>read back from its code</th></tr>"
    return (
        f'{said}<h3>What a code keeps</h3><table class="words">{heads}{cells}</table><p class="quiet">The likeliest '
        f"words given the mean of each sentence's posterior. Where the code is not used, all are alike.</p>"
    )


def _numbers(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """The table of metrics, one row per run; a dash where `evaluate` has not been run."""
    rows = [["run", *(head for head, _ in _NUMBERS)]]
    for name, folder in zip(names, folders, strict=True):
        metrics, trace = folder.metrics(), Trace(name, folder.records())
        rows.append([name, *("–" if metrics is None else cell(metrics, trace) for _, cell in _NUMBERS)])
    measured = [(name, m) for name, folder in zip(names, folders, strict=True) if (m := folder.metrics())]
    notes = [_NUMBERS_NOTE] if measured else []
    notes += attributed([(name, sentence) for name, metrics in measured for sentence in _measured_on(metrics)])
    return f"<h2>Numbers</h2>{_not_alike(names, folders)}{_table(rows, notes)}"


def _measured_on(metrics: Mapping[str, Any]) -> list[str]:
    draws = metrics.get("draws", 1)  # older ones had one
    return [
        f"Measured on {so_many(metrics['examples'], metrics['split'])}, {draws} sample{'s' if draws > 1 else ''} of z "
        f"for each.",
        f"Reconstruction: {metrics['likelihood']}.",
    ]


def _not_alike(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """That runs are not on the same data, and which is on which; nothing where they are."""
    on: dict[str, list[str]] = {}
    for name, folder in zip(names, folders, strict=True):
        on.setdefault(data_words(folder.experiment()), []).append(name)
    if len(on) < 2:
        return ""
    which = "; ".join(f"{' and '.join(runs)} on {data}" for data, runs in on.items())
    return _warning(f"These runs are not on the same data, so their nats are not to be compared: {which}.")


def _target(trace: Trace) -> str:
    target = trace.records[-1]["target"] if trace.records else None
    of = "" if trace.steered == "kl" else f" ({HELD[trace.steered]})"
    return "–" if target is None else f"{nats(target)}{of}"


def _told(metrics: Mapping[str, Any]) -> str:
    told = metrics.get("mutual_information")  # older measurements lack it
    return "–" if told is None or told["lower"] is None else f"{told['lower']:.2f}"


def _response(metrics: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], str]) -> str:
    return "–" if metrics["step_response"] is None else shown(metrics["step_response"])


def _settled(response: Mapping[str, Any]) -> str:
    return "never" if response["settling_time"] is None else f"{response['settling_time']:,.0f}"


# Heading, and the cell of a run that has been evaluated.
_NUMBERS: tuple[tuple[str, Callable[[Mapping[str, Any], Trace], str]], ...] = (
    ("step", lambda metrics, _: f"{metrics['step']:,}"),
    ("ELBO", lambda metrics, _: f"{metrics['elbo']:.2f}"),
    ("reconstruction", lambda metrics, _: f"{metrics['reconstruction']:.2f}"),
    ("KL", lambda metrics, _: f"{metrics['kl']:.2f}"),
    ("target", lambda _, trace: _target(trace)),
    ("active units", lambda metrics, _: f"{metrics['active_units']} of {len(metrics['kl_per_latent'])}"),
    ("mutual information", lambda metrics, _: _told(metrics)),
    ("settled at step", lambda metrics, _: _response(metrics, _settled)),
    ("overshoot", lambda metrics, _: _response(metrics, lambda r: f"{100 * r['overshoot']:.1f} %")),
    ("steady-state error", lambda metrics, _: _response(metrics, lambda r: f"{100 * r['steady_state_error']:+.2f} %")),
)
_NUMBERS_NOTE = (
    "Nats per example, with the weights of the last step. Active units: variance of the mean above 0.01. Mutual "
    "information: of example and code, its lower bound, of at most 4,096. Settling (to ±2 %), overshoot (start-up "
    "included) and steady-state error: from the training batches, where a set point is held; the KL of examples that "
    "were not trained on may lie off it."
)


def _disentanglement(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """Every score that some run has, one row per run; nothing where no factors are known."""
    runs = [(name, metrics) for name, folder in zip(names, folders, strict=True) if (metrics := folder.metrics())]
    shown = {head: path for head, path in _SCORES.items() if any(look_up(m, path) is not None for _, m in runs)}
    if not shown:
        return ""
    rows = [["run", *shown]]
    for name, metrics in runs:
        found = [look_up(metrics, path) for path in shown.values()]
        rows.append([name, *("–" if value is None else f"{value:.3f}" for value in found)])
    notes = attributed([(name, sentence) for name, metrics in runs for sentence in _scored_on(metrics)])
    return f"<h3>Disentanglement</h3>{_table(rows, notes)}"


def _scored_on(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on the examples and factors behind the scores of a run, how each was worked out, or why it was not."""
    notes, skipped = [], dict[str, list[str]]()
    if truth := metrics.get("ground_truth"):  # older measurements lack it
        factors = ", ".join(truth["names"]) or "no factor"
        notes.append(f"Scores of {so_many(truth['examples'], truth['split'])}, over {factors}.")
        if truth["unordered"]:
            left_out = ", ".join(truth["unordered"])
            notes.append(f"No quantity, so left out of the sampled MIG and the continuous SAP: {left_out}.")
        if truth["constant"]:
            notes.append(f"Left out because they do not vary: {', '.join(truth['constant'])}.")
    for head, path in _SCORES.items():
        score = metrics.get(path.partition(".")[0], {})
        notes += [f"{score['estimator']}."] if "estimator" in score else []
        if "skipped" in score:
            skipped.setdefault(score["skipped"], []).append(head)
    return [*dict.fromkeys(notes), *(f"No {'; '.join(heads)}: {reason}." for reason, heads in skipped.items())]


def _table(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Rows of words, the first of them heads, and lines below them."""
    cells = [
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True)
    ]
    below = "<br>".join(map(html.escape, notes))
    return f'<table>{"".join(f"<tr>{row}</tr>" for row in cells)}</table><p class="quiet">{below}</p>'


def _commands(folders: Sequence[RunFolder]) -> str:
    lines = dict.fromkeys(str(folder.manifest().get("command", "")) for folder in folders)
    return f"<h3>To make it again</h3><pre>{html.escape(chr(10).join(lines))}</pre>"


def _warning(line: str) -> str:
    return f'<p class="warning">{html.escape(line)}</p>'


def _picture(path: Path, caption: str) -> str:
    encoded, words = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
    source = f'<img alt="{words}" src="data:image/{path.suffix[1:]};base64,{encoded}">'
    return f"<figure>{source}<figcaption>{words}</figcaption></figure>"


def _drawing(figure: Figure, caption: str) -> str:
    """A figure as inline SVG: sharp at any size, and nothing to fetch."""
    buffer = io.StringIO()
    as_written(figure)
    with mpl.rc_context({"svg.hashsalt": "controlvae"}):  # the same runs give the same file
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"
