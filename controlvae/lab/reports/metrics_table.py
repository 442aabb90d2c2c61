"""Metrics of a run as tables in the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controlvae.diagnostics.collapse import describe_used_latents
from controlvae.lab.evaluation.registry import entry_name
from controlvae.lab.reports.dialog_section import RESPONSES_SHOWN, UTTERANCES_SHOWN
from controlvae.lab.reports.formatting import format_number

_MAX_LIST_NUMBERS = 10
_PER_FACTOR_FIELDS = ("per_factor", "entropies")
_TEXT_SECTIONS = ("dialog", "text", "best")
_NOT_SHOWN = ("samples", "read_back", "thorough")
# What scores with several values have for a single factor.
_OF_A_FACTOR = {"dci": ", accuracy", "infomec": ", InfoE", "dci_es": ", explicitness"}
_FILE_WIDTH = 120  # columns of a table that is written to a file


def print_metrics(title: str, metrics: Mapping[str, Any]) -> None:
    """Print every metric with its description. A repeated description is printed once."""
    seen: set[str] = set()
    texts = metrics.get("dialog") or metrics.get("text", {})
    # Perplexities are printed next to their descriptions.
    numbers = {name: value for name, value in metrics.items() if name not in _TEXT_SECTIONS}
    sections = {
        title: {**numbers, **texts},
        f"{title}, best by validation": metrics.get("best", {}),
    }
    for heading, section in sections.items():
        table = Table(title=escape(heading), show_header=False, box=None, title_justify="left")
        for name, value in section.items():
            # The split of the scores is printed even if other metrics share it.
            described = set() if name == "ground_truth" else seen
            if name not in _NOT_SHOWN and (text := _format_metric(name, value, described)):
                table.add_row(entry_name(name), escape(text))
            if name == "kl_per_latent" and value and None not in value:
                table.add_row("used latents", describe_used_latents(value))
        if section:
            Console(soft_wrap=True).print(table)
    _print_factors(metrics)
    if "dialog" in metrics:
        _print_responses(texts["samples"])
    elif "text" in metrics:
        _print_sentences(texts)


def _print_factors(metrics: Mapping[str, Any]) -> None:
    """Print the scores that the means consist of: a row per factor, a column per score."""
    scores = {
        name: score["per_factor"]
        for name, score in metrics.items()
        if isinstance(score, dict) and isinstance(score.get("per_factor"), dict)
    }
    if not scores:
        return
    split = metrics.get("ground_truth", {}).get("split")  # external codes have none
    title = escape(f"by factor ({split})" if split else "by factor")
    table = Table(title=title, box=None, title_justify="left")
    table.add_column("")
    for name in scores:
        table.add_column(f"{entry_name(name)}{_OF_A_FACTOR.get(name, '')}", justify="right")
    for factor in max(scores.values(), key=len):  # some scores skip categories
        values = [of_factor.get(factor) for of_factor in scores.values()]
        table.add_row(escape(factor), *(format_number(value, 3) for value in values))
    Console(soft_wrap=True).print(table)


def _print_responses(samples: Sequence[Mapping[str, Any]]) -> None:
    """Print the context, the reference response and the responses of the model."""
    table = Table(title="responses (B is whoever responds)", title_justify="left", show_lines=True)
    for heading in ("context", "what B said", "what the model says"):
        table.add_column(heading, overflow="fold")
    for sample in samples:
        context = "\n".join(sample["context"][-UTTERANCES_SHOWN:])
        responses = "\n".join(f"· {response}" for response in sample["responses"][:RESPONSES_SHOWN])
        table.add_row(escape(context), escape(sample["reference"]), escape(responses))
    wide_console().print(table)


def _print_sentences(text: Mapping[str, Any]) -> None:
    """Print what the model writes, and what the codes of sentences decode to."""
    table = Table(title="sentences", title_justify="left", show_lines=True)
    for heading in ("data", "decoded from its code"):
        table.add_column(heading, overflow="fold")
    for pair in text["read_back"]:
        table.add_row(escape(pair["sentence"]), escape(pair["read_back"]))
    wide_console().print(table)
    print(f"written from {text['written_from']}:")
    for line in text["samples"]:
        print(f"  {line}")


def wide_console(width: int = _FILE_WIDTH) -> Console:
    """Return a console for tables: as wide as the terminal, or `width` in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def _format_metric(name: str, value: object, seen: set[str]) -> str:
    """Return numbers on one line and descriptions below."""
    parts = list(_flatten(value))
    numbers = [
        f"{path} {_format_value(part)}".strip() for path, part in parts if not isinstance(part, str)
    ]
    descriptions = []
    for path, part in parts:
        sentence = f"{path.rpartition(' ')[2] or name}: {part}"
        if isinstance(part, str) and (sentence not in seen or not path):
            seen.add(sentence)
            descriptions.append(f"{path}: {part}" if path else part)
    lines = [", ".join(numbers), *descriptions] if numbers else descriptions
    return "\n".join(lines) or ("skipped, as above" if parts else "")


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the parts of a metric with their paths.

    Matrices stay in metrics.json. Values per factor are in the table of all scores.
    """
    if isinstance(value, dict):
        for inner, part in value.items():
            if inner not in _PER_FACTOR_FIELDS:
                yield from _flatten(part, f"{path} {inner}".strip().replace("_", " "))
    elif not (isinstance(value, list) and value and isinstance(value[0], list)):
        yield path, value


def _format_value(value: object) -> str:
    match value:
        case None | []:
            return "–"
        case list() if len(value) > _MAX_LIST_NUMBERS and all(
            isinstance(part, float) for part in value
        ):
            largest = sorted(value, reverse=True)[:_MAX_LIST_NUMBERS]
            listed = " ".join(f"{part:.2f}" for part in largest)
            return f"{listed} are the largest of {len(value):,}"
        case list():
            texts = (f"{part:.2f}" if isinstance(part, float) else str(part) for part in value)
            return " ".join(texts)
        case float():
            return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"
        case int():
            return f"{value:,}"
    return str(value)
