"""Responses of several dialog models to the same contexts, side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlvae.lab.io import write_text
from controlvae.lab.reports.dialog_section import RESPONSES_SHOWN, UTTERANCES_SHOWN
from controlvae.lab.runs.folder import RunFolder
from controlvae.paper.printed import PaperExamples


def write_examples(paper: PaperExamples, runs: Mapping[str, Sequence[RunFolder]], out: Path) -> str:
    """Writes `NAME.md`, a table for every context with a column for each method's first seed, and returns it."""
    found = {row.method: _samples(runs.get(row.key, ())) for row in paper.rows}
    lines = [f"**{paper.title}**", "", paper.note, ""]
    missing = [method for method, samples in found.items() if not samples]
    lines += [f"Not evaluated yet: {', '.join(missing)}.", ""] if missing else []
    methods = {method: samples for method, samples in found.items() if samples}
    for place, sample in enumerate(next(iter(methods.values()), ())):
        said = " / ".join(sample["context"][-UTTERANCES_SHOWN:])
        lines += [
            f"{sample['topic'] or 'no topic'}: {said}",
            "",
            f"B: {sample['reference']} (what was said)",
            "",
        ]
        answers = [
            _same_context(samples, place, sample)[:RESPONSES_SHOWN] for samples in methods.values()
        ]
        table = [tuple(methods), ("---",) * len(methods), *zip(*answers, strict=False)]
        lines += [f"| {' | '.join(row)} |" for row in table] + [""]
    text = "\n".join(lines)
    write_text(out / f"{paper.name}.md", text)
    return text


def _samples(folders: Sequence[RunFolder]) -> Sequence[Mapping[str, Any]]:
    """Of the first seed that is evaluated."""
    return next(
        (m["dialog"]["samples"] for folder in folders if (m := folder.metrics()) and "dialog" in m),
        (),
    )


def _same_context(
    samples: Sequence[Mapping[str, Any]], place: int, like: Mapping[str, Any]
) -> list[str]:
    """Responses to the same context; runs on other data have none."""
    if place < len(samples) and samples[place]["context"] == like["context"]:
        return [response.replace("|", "\\|") for response in samples[place]["responses"]]
    return ["–"] * RESPONSES_SHOWN
