"""Joining of a user-supplied model to those of the other ranks, before its optimiser is made."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.custom.noise import Noise
from controlvae.lab.ranks.batch_norm import share_batch_norm
from controlvae.lab.ranks.gradients import LossModule, broadcast_state, find_unused, keep_buffers
from controlvae.lab.ranks.group import RankGroup, digest_of, require_same
from controlvae.lab.ranks.sharding import find_units, shard_model
from controlvae.lab.ranks.share import BatchShare


class JoinedModel(NamedTuple):
    """Model that several ranks train."""

    wrapped: LossModule | None  # sharded by FSDP2
    unused: bool  # some parameters may have no gradient in a step


def join_ranks(
    vae: CustomVAE, batch: Any, share: BatchShare, group: RankGroup, sharded: bool
) -> JoinedModel:
    """Give the model of every rank the weights of rank 0, and its batch norms all rows.

    Args:
        vae: Model of this rank.
        batch: A few examples.
        share: Share of this rank in each batch.
        group: Ranks that train the model.
        sharded: Shard the weights over the ranks.

    Raises:
        UserError: If the models have other weights by name, shape or type.
    """

    def loss() -> Tensor:
        found = vae.losses(batch, Noise(share_device, vae.dtype))
        return found.reconstruction + found.other + found.kl

    shapes = [(n, tuple(v.shape), str(v.dtype)) for n, v in vae.module.state_dict().items()]
    require_same(group, {"shapes of weights": digest_of(shapes)})
    share_device = next(vae.module.parameters()).device
    with torch.random.fork_rng(devices=[]), keep_buffers(vae.module):
        unused = find_unused(vae.module, loss)
    broadcast_state(vae.module)
    share_batch_norm(vae.module, share)
    with torch.random.fork_rng(devices=[]), keep_buffers(vae.module):
        units = find_units(vae.module, loss) if sharded else []
    wrapped = shard_model(vae.module, units) if sharded else None
    return JoinedModel(wrapped, unused)
