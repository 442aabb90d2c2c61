"""Speed on the device of a cluster: from a record, or from a short measurement there or here."""

from collections.abc import Callable

import torch

from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.slurm import Slurm
from controlvae.lab.cluster.speed import (
    Speed,
    device_name,
    find_speed,
    keep_speed,
    measure_speed,
)
from controlvae.lab.config import Experiment
from controlvae.lab.training.runner import RunOptions


def speed_finder(
    cluster: Cluster, options: RunOptions, gpus: int
) -> Callable[[Experiment], Speed | None]:
    """Return a function that finds or measures the speed of an experiment on a cluster.

    Args:
        cluster: Where the jobs will run.
        options: How to execute the runs.
        gpus: GPUs of each job.
    """

    def find(experiment: Experiment) -> Speed | None:
        name = _device_name(cluster, options, gpus)
        found = find_speed(experiment, name)
        if found is None:
            found = _measure(experiment, cluster, options, gpus)
            if found is not None:
                keep_speed(experiment, name, found)
        return found

    return find


def _device_name(cluster: Cluster, options: RunOptions, gpus: int) -> str:
    """Return the name of a job's device, as far as it is known before a job runs."""
    if isinstance(cluster, Slurm):
        place = f"partition {cluster.partition_name()}"
        return (cluster.gpu_type() or f"GPU of {place}") if gpus else place
    return device_name(torch.device("cuda" if gpus else "cpu"))


def _measure(
    experiment: Experiment, cluster: Cluster, options: RunOptions, gpus: int
) -> Speed | None:
    note = options.display.note
    if isinstance(cluster, Slurm):
        if options.task is None:
            note("measuring the speed on a node")
            return cluster.measure(experiment, options.data_root, gpus)
        if gpus:
            return None
    device = torch.device("cuda" if gpus else "cpu")
    return measure_speed(experiment, device, options.data_root, options.task)
