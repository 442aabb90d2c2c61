"""Notes on runs: merging those that runs share, and describing their data."""

from collections.abc import Sequence

from controlvae.lab.config import Experiment, non_default_fields


def merge_notes(notes: Sequence[tuple[str, str]]) -> list[str]:
    """Merge notes: those common to all runs first, then the rest prefixed by run names.

    Args:
        notes: Pairs of a run's name and a sentence about it.
    """
    runs_by_sentence: dict[str, dict[str, None]] = {}
    for name, sentence in notes:
        runs_by_sentence.setdefault(sentence, {})[name] = None
    all_runs = tuple(dict.fromkeys(name for name, _ in notes))
    sentences_by_runs: dict[tuple[str, ...], list[str]] = {all_runs: []}
    for sentence, names in runs_by_sentence.items():
        sentences_by_runs.setdefault(tuple(names), []).append(sentence)
    lines = []
    for runs, sentences in sentences_by_runs.items():
        prefix = "" if runs == all_runs else f"{'; '.join(runs)}: "
        lines += [prefix + " ".join(sentences)] if sentences else []
    return lines


def describe_data(experiment: Experiment) -> str:
    """Describe the data of an experiment by its non-default settings.

    A table of factors is left out because training does not read it. Example:
    `Shapes2D(size=32, images=500)`.
    """
    settings = non_default_fields(experiment.data)
    shown = [
        f"{name}={value!r}" for name, value in settings.items() if name not in ("type", "factors")
    ]
    return f"{settings['type']}({', '.join(shown)})"
