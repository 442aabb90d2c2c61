"""UDR of runs, or of files of codes: agreement of models on the same examples, without labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.evaluation.disentanglement import encode
from controlvae.lab.evaluation.external_codes import read_codes
from controlvae.lab.runs.loaded import LoadedRun, select_examples, shows_codes
from controlvae.metrics import udr

_EXAMPLES = 10_000  # as in disentanglement_lib's study
_NEEDS = "UDR compares models of several seeds on the same data"


def compare_runs(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Return the entry `udr` of metrics.json for each run.

    Args:
        runs: Trained runs over the same data.

    Raises:
        UserError: There are fewer than two runs, or their data differs.
    """
    if len(runs) < 2:
        raise UserError(f"{_NEEDS}, got {len(runs)} run; name a folder of runs")
    if others := [run for run in runs if run.examples.fingerprint() != _fingerprint(runs[0])]:
        names = f"{runs[0].folder.path} and {others[0].folder.path}"
        raise UserError(f"{_NEEDS}, but the data of {names} differs")
    if not all(shows_codes(run) for run in runs):
        raise UserError(f"{_NEEDS}, and one of these has no Gaussian codes")
    codes, rates = [], []
    for run in runs:
        chosen = select_examples(run, min(_EXAMPLES, run.available))
        means, log_variances = (part.cpu().double() for part in encode(run, chosen))
        codes.append(means)
        rates.append(gaussian_kl(Posterior(means, log_variances)).mean(0))
    return _entries(codes, rates, [str(run.folder.path) for run in runs])


def _fingerprint(run: LoadedRun) -> Any:
    return run.examples.fingerprint()


def compare_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the entry `udr` of the scores of each file of codes.

    Args:
        paths: Files of codes, with the same examples in the same order.

    Raises:
        UserError: There are fewer than two files, or their codes cannot be compared.
    """
    if len(paths) < 2:
        raise UserError(f"{_NEEDS}, got {len(paths)} file; name several files of codes")
    arrays = [read_codes(path) for path in paths]
    rows = np.random.default_rng(0).permutation(len(arrays[0]["means"]))[:_EXAMPLES]
    counts = {len(each["means"]) for each in arrays}
    if len(counts) > 1:
        numbers = ", ".join(f"{len(each['means']):,}" for each in arrays)
        raise UserError(f"{_NEEDS}, got files of {numbers} examples")
    codes = [torch.as_tensor(each["means"][rows].astype(np.float64)) for each in arrays]
    rates = None
    if all("log_variances" in each for each in arrays):
        spreads = [torch.as_tensor(e["log_variances"][rows].astype(np.float64)) for e in arrays]
        rates = [
            gaussian_kl(Posterior(mean, spread)).mean(0)
            for mean, spread in zip(codes, spreads, strict=True)
        ]
    return _entries(codes, rates, [str(path) for path in paths])


def _entries(codes: Sequence[Any], rates: Sequence[Any] | None, names: list[str]) -> list[Any]:
    try:
        result = udr(codes, rates)
    except ValueError as error:
        raise UserError(f"UDR of {', '.join(names)}: {error}") from None
    pairs = np.array(result.pairs)
    return [
        {
            "score": score,
            "agreement": {name: pairs[i, j] for i, name in enumerate(names) if i != j},
            "estimator": result.estimator,
        }
        for j, score in enumerate(result.scores)
    ]
