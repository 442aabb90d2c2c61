"""Training of a small VAE, sharded over ranks by FSDP2. Run as `python FILE RANK RANKS STORE`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import controlvae as cv

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from common import SmallVAE, binary_vectors

BATCH, STEPS, LAW = 64, 20, cv.PI(8.0, ki=1e-3)


def train(rank=0, ranks=1):
    """Return the weight of every step. Each rank trains on its part of every batch."""
    torch.manual_seed(0)
    data, model = torch.from_numpy(binary_vectors()), SmallVAE()
    if ranks > 1:
        shard(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    control, weights = cv.Controller(LAW), []
    for step in range(STEPS):
        if step == STEPS // 2:  # resume from a checkpoint of the controller
            saved, control = control.state_dict(), cv.Controller(LAW)
            control.load_state_dict(saved)
        generator = torch.Generator().manual_seed(step)
        x = data[torch.randint(len(data), (BATCH,), generator=generator)].chunk(ranks)[rank]
        recon, kl = forward(model, x, generator, rank, ranks)
        weight = control.step(kl)
        weights.append(weight.item())
        (recon + weight * kl).backward()
        optimiser.step()
        optimiser.zero_grad()
    return weights


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for module in model.children():
        fully_shard(module)
    fully_shard(model)
    assert type(next(model.parameters())).__name__ == "DTensor"


def forward(model, x, generator, rank, ranks):
    """Return reconstruction and KL with the noise of this rank's part of the batch."""
    original = torch.randn_like

    def part_of_noise(like):
        noise = torch.randn(BATCH, *like.shape[1:], generator=generator)
        return noise.chunk(ranks)[rank]

    torch.randn_like = part_of_noise
    try:
        return model(x)
    finally:
        torch.randn_like = original


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=ranks
    )
    print(json.dumps(train(rank, ranks)))
    dist.destroy_process_group()
