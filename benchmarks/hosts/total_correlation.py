"""Hold the total correlation of a β-TCVAE in a plain loop, where β is usually fixed.

    python benchmarks/hosts/total_correlation.py --seeds 3

The model and the data are those of `examples/plain_tcvae.py`. Chen et al. (2018) use
β = 6 for these images.
"""

import sys
from pathlib import Path

import torch
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare

from controlvae.distributions import bernoulli, gaussian_kl

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from plain_models import ShapesVAE, load_shapes, total_correlation


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    images, model = load_shapes(), ShapesVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(rule: Rule) -> tuple[float, float]:
        batch = images[torch.randint(len(images), (128,))]
        logits, posterior, code = model(batch)
        kl, tc = gaussian_kl(posterior, "mean"), total_correlation(posterior, code)
        weight = rule(tc)
        loss = bernoulli(logits, batch).mean() + kl + (weight - 1) * tc
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return tc.item(), float(weight)

    return step


TASK = Task(
    "plain loop, β-TCVAE",
    "",
    "total correlation",
    "nats per example",
    (0.4, 0.8, 1.6),
    2_000,
    make_step,
    "rendered 2D Shapes at 16×16; fixed β 6 (Chen et al., 2018), and the nearest of 6, 1 and 2",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    weights = {f"β {beta:g}": beta for beta in (6.0, 1.0, 2.0)}
    save_entries("total_correlation", compare(TASK, arguments.seeds, weights), arguments.out)
