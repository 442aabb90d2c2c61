"""Group of the processes that train one model, as torchrun starts them."""

import atexit
import gc
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from controlvae.errors import RunError, UserError

# Set by `controlvae ... --devices` for the processes that it starts.
LAUNCHED_VARIABLE = "CONTROLVAE_LAUNCHED"
UNKNOWN_LOSS = "another rank has ended"
_FAILURE = "controlvae/failure"  # key under which a rank says why it fails
_SHOWN_FACTS = ("controlvae", "torch", "seeds")  # the others are digests
_CONNECTION_ERRORS = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "NCCL",
    "process group",
    "Timed out waiting",
)


class LostRanksError(RunError):
    """Another rank ended, so that training cannot continue."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that train one model. A single process is a group of one.

    Attributes:
        rank: Number of this process. Rank 0 writes the run folder and prints.
        size: Number of processes.
        local_rank: Number of this process on its machine.
        local_size: Number of processes on this machine.
        job: Name of the job, equal after torchrun has restarted the processes.
        store: Key-value store of the job, for the reason of a failure.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    job: str = ""
    store: Any = None

    @property
    def is_alone(self) -> bool:
        """True if one process trains the model."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """True if this process writes the run folder and prints."""
        return self.rank == 0

    def pick_device(self, device: torch.device) -> torch.device:
        """Return the device of this rank: GPUs of a machine are dealt out in order."""
        if device.type != "cuda" or device.index is not None:
            return device
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def say_failure(self, line: str) -> None:
        """Tell rank 0 why this rank fails, if nobody has failed before."""
        if self.store is not None:
            try:
                self.store.compare_set(_FAILURE, "", f"rank {self.rank}: {line}")
            except (RuntimeError, dist.DistError):
                return

    def failure(self) -> str:
        """Return the reason of the first failure, or an empty text."""
        try:
            found = self.store is not None and self.store.check([_FAILURE])
            return self.store.get(_FAILURE).decode() if found else ""
        except (RuntimeError, dist.DistError):
            return ""


ALONE = RankGroup()
_joined: list[RankGroup] = []  # the group of this process, once it has joined one


def under_torchrun() -> bool:
    """Return whether torchrun, or something like it, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def join_group(device: torch.device) -> RankGroup:
    """Join the ranks of this job, or return a group of one outside of torchrun.

    A process group that the user has initialised is used as it is.

    Args:
        device: Kind of device to train on.

    Raises:
        UserError: If the ranks cannot find each other.
    """
    if _joined and dist.is_initialized():
        return _joined[0]
    if not dist.is_available() or not (dist.is_initialized() or under_torchrun()):
        return ALONE
    store = None if dist.is_initialized() else _initialise(device)
    environment = os.environ
    rank, size = dist.get_rank(), dist.get_world_size()
    group = RankGroup(
        rank,
        size,
        int(environment.get("LOCAL_RANK", rank)),
        int(environment.get("LOCAL_WORLD_SIZE", size)),
        _name_job(),
        store,
    )
    _joined[:] = [group]
    if store is not None:
        atexit.register(leave_group)  # connections must not outlive the interpreter's threads
    return group


def leave_group() -> None:
    """Leave the group that `join_group` joined, unless a rank of it is lost."""
    if _joined and _joined[0].store is not None and dist.is_initialized():
        gc.collect()  # what still refers to the group would keep its threads running
        dist.destroy_process_group()
    _joined.clear()


def _initialise(device: torch.device) -> Any:
    """Initialise the default process group from torchrun's variables and return its store."""
    # Two ranks on one GPU are refused by NCCL.
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    has_gpus = device.type == "cuda" and torch.cuda.device_count() >= local_size
    backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=timedelta(minutes=5))))
        prefix = "controlvae"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
            # The store outlives the processes. A store of rank 0's does not, and machines that
            # joined later count restarts differently.
            prefix += f"/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if has_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(
            backend, store=dist.PrefixStore(prefix, store), rank=rank, world_size=size
        )
    except (RuntimeError, ValueError, OSError, dist.DistError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"rank {os.environ.get('RANK')} cannot reach the others ({reason}); start all of them "
            "with torchrun, with one --rdzv-endpoint that every machine can reach"
        ) from None
    return dist.PrefixStore(prefix, store)


def _name_job() -> str:
    """Return a name that stays when torchrun restarts its processes.

    Without an id of the user it is that of the torchrun process itself.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job in ("", "none"):
        job = f"{socket.gethostname()}-{os.getppid()}"
    return job


@contextmanager
def agree(group: RankGroup) -> Iterator[None]:
    """Let all ranks fail if one of them fails within this context, with its message.

    Every rank calls it in the same order. Errors that other ranks could not know of then end the
    job before anything is trained.

    Args:
        group: Ranks of the job.

    Raises:
        UserError: If a rank raised one; with its message on every rank.
        RunError: If a rank raised one.
    """
    failure: UserError | RunError | None = None
    try:
        yield
    except (UserError, RunError) as error:
        failure = error
    if group.is_alone:
        if failure is not None:
            raise failure
        return
    kind = None if failure is None else isinstance(failure, UserError)
    lines: list[Any] = [None] * group.size
    with explain_lost_ranks(group):
        dist.all_gather_object(lines, None if failure is None else (kind, str(failure)))
    if failure is not None and group.leads:
        raise _mark_agreed(failure)
    for rank, found in enumerate(lines):
        if found is not None:
            is_user_error, message = found
            line = message if rank == 0 else f"rank {rank}: {message}"
            raise _mark_agreed((UserError if is_user_error else RunError)(line)) from failure


def _mark_agreed(error: Exception) -> Exception:
    error.agreed = True  # type: ignore[attr-defined]
    return error


def is_agreed(error: Exception) -> bool:
    """Return whether all ranks raised an error together, so that none of them waits for another."""
    return getattr(error, "agreed", False)


@contextmanager
def explain_lost_ranks(group: RankGroup) -> Iterator[None]:
    """Raise LostRanksError where a collective operation fails because a rank has ended."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        text = str(error)
        known = isinstance(error, dist.DistError) or any(w in text for w in _CONNECTION_ERRORS)
        if group.is_alone or not known:
            raise
        reason = group.failure()
        _joined.clear()  # nothing can be agreed on with ranks that are gone
        raise LostRanksError(reason or UNKNOWN_LOSS) from error


def digest_of(value: Any) -> str:
    """Return a short digest of a value's text."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def require_same(group: RankGroup, facts: dict[str, str]) -> None:
    """Raise UserError if ranks differ, before the first step.

    Args:
        group: Ranks of the job.
        facts: Texts or digests that must be equal on all ranks, by what they describe.
    """
    if group.is_alone:
        return
    everywhere: list[Any] = [None] * group.size
    with explain_lost_ranks(group):
        dist.all_gather_object(everywhere, facts)
    for name, expected in everywhere[0].items():
        for rank, found in enumerate(everywhere):
            if found.get(name) != expected:
                values = ""
                if name in _SHOWN_FACTS:
                    values = f" ({found.get(name)} instead of {expected})"
                line = f"rank {rank} differs from rank 0 in {name}{values}; start every rank with"
                raise _mark_agreed(UserError(f"{line} the same command, versions and data"))
