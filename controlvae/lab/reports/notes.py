"""Notes on the runs behind a table: merged by what they share."""

from collections.abc import Sequence

from controlvae.lab.config import Experiment, non_default_fields


def merge_notes(said: Sequence[tuple[str, str]]) -> list[str]:
    """What is said of runs, by their names: a line of what all share, then lines headed by those they are about."""
    of: dict[str, dict[str, None]] = {}
    for name, sentence in said:
        of.setdefault(sentence, {})[name] = None
    alike: dict[tuple[str, ...], list[str]] = {tuple(dict.fromkeys(name for name, _ in said)): []}
    for sentence, names in of.items():
        alike.setdefault(tuple(names), []).append(sentence)
    shared, *rest = ((names, " ".join(sentences)) for names, sentences in alike.items())
    return [
        line
        for line in (shared[1], *(f"{'; '.join(names)}: {line}" for names, line in rest))
        if line
    ]


def describe_data(experiment: Experiment) -> str:
    """`Shapes2D(size=32, images=500)`: what its data are, but for a table of factors and what stands at its default."""
    settings = non_default_fields(experiment.data)
    given = [
        f"{name}={value!r}" for name, value in settings.items() if name not in ("type", "factors")
    ]
    return f"{settings['type']}({', '.join(given)})"
