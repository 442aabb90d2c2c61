"""Responses of several dialog models to the same contexts, as in the paper's appendix."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlvae.lab.io import write_text
from controlvae.lab.reports.dialog_section import RESPONSES_SHOWN, UTTERANCES_SHOWN
from controlvae.lab.runs.folder import RunFolder
from controlvae.paper.specs import PaperExamples


def write_examples(spec: PaperExamples, runs: Mapping[str, Sequence[RunFolder]], out: Path) -> str:
    """Write `NAME.md`: one table per context, with a column for the first seed of each method.

    Args:
        spec: Methods, title and note.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.

    Returns:
        The Markdown text.
    """
    samples_by_method = {row.method: _first_samples(runs.get(row.key, ())) for row in spec.rows}
    missing = [method for method, samples in samples_by_method.items() if not samples]
    methods = {method: samples for method, samples in samples_by_method.items() if samples}
    lines = [f"**{spec.title}**", "", spec.note, ""]
    lines += [f"Not evaluated yet: {', '.join(missing)}.", ""] if missing else []
    for place, sample in enumerate(next(iter(methods.values()), ())):
        context = " / ".join(sample["context"][-UTTERANCES_SHOWN:])
        lines += [f"{sample['topic'] or 'no topic'}: {context}", ""]
        lines += [f"B: {sample['reference']} (true response)", ""]
        answers = [
            _responses_to(sample, samples, place)[:RESPONSES_SHOWN] for samples in methods.values()
        ]
        table = [tuple(methods), ("---",) * len(methods), *zip(*answers, strict=False)]
        lines += [f"| {' | '.join(row)} |" for row in table] + [""]
    markdown = "\n".join(lines)
    write_text(out / f"{spec.name}.md", markdown)
    return markdown


def _first_samples(folders: Sequence[RunFolder]) -> Sequence[Mapping[str, Any]]:
    """Return the samples of the first seed that is evaluated."""
    for folder in folders:
        if (metrics := folder.metrics()) and "dialog" in metrics:
            return metrics["dialog"]["samples"]
    return ()


def _responses_to(
    sample: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], place: int
) -> list[str]:
    """Return a method's responses to the context of `sample`; runs on other data have none."""
    if place < len(samples) and samples[place]["context"] == sample["context"]:
        return [response.replace("|", "\\|") for response in samples[place]["responses"]]
    return ["–"] * RESPONSES_SHOWN
