"""Metrics that the user names: `--metrics` and `--weights`."""

from collections.abc import Mapping, Sequence

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.evaluation.metric import OPTIONAL, Selection
from controlvae.lab.evaluation.registry import GROUPS
from controlvae.lab.evaluation.scores import DISENTANGLEMENT_SCORES

#: Names that `--metrics` takes. The ELBO is measured in any case.
SELECTABLE = tuple(dict.fromkeys(["elbo", *(key for group in GROUPS for key in group.keys), "udr"]))
#: Of these, the ones that need no more than codes.
CODE_METRICS = (*(score.key for score in DISENTANGLEMENT_SCORES), "udr")


def select_metrics(
    names: str | Sequence[str] | None,
    weights: Mapping[str, object] | None = None,
    known: Sequence[str] = SELECTABLE,
) -> Selection:
    """Return the metrics that the user named.

    Args:
        names: Names, or one string of names separated by commas. `all` takes the optional ones too
            and skips what this machine lacks. None takes all but the optional ones.
        weights: Files of networks, by the names `dinov2` and `mauve`.
        known: Names to choose from.

    Raises:
        UserError: A name is unknown.
    """
    files = {name: str(file) for name, file in (weights or {}).items()}
    for name in files:
        if name not in ("dinov2", "mauve"):
            raise unknown_name_error("network for --weights", name, ("dinov2", "mauve"))
    if names is None:
        return Selection(None, files)
    parts = names.split(",") if isinstance(names, str) else names
    chosen = [part.strip() for part in parts if part.strip()]
    if not chosen:
        raise UserError(f"--metrics names none; known: all, {', '.join(known)}")
    for name in chosen:
        if name != "all" and name not in known:
            raise unknown_name_error("metric", name, ("all", *known))
    if "all" in chosen:
        return Selection(frozenset(known), files, may_skip=True)
    return Selection(frozenset(chosen), files)


def is_optional(path: str) -> bool:
    """Return whether the metric at a path of metrics.json is measured on request only."""
    return path.partition(".")[0] in OPTIONAL
