"""Mean of a measurement over the ranks of `torch.distributed`."""

from torch import Tensor
from torch import distributed as dist

_HAS_DISTRIBUTED = dist.is_available()


def count_ranks() -> int:
    """Return the number of ranks, 1 without a process group."""
    return dist.get_world_size() if _HAS_DISTRIBUTED and dist.is_initialized() else 1


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean over all ranks, on the device of `value`.

    NaN on one rank is NaN on all of them, so every rank skips the same measurement.
    """
    device = value.device
    if dist.get_backend() == "nccl":
        value = value.cuda()
    total = value.clone()
    dist.all_reduce(total)
    return (total / count_ranks()).to(device)
