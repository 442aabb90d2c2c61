"""Hold the information of a variational bottleneck in a plain loop, where β is usually fixed.

    python benchmarks/hosts/information_bottleneck.py --seeds 3

The model and the data are those of `examples/plain_vib.py`. Alemi et al. (2017) recommend β = 1e-3.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare

from controlvae.distributions import gaussian_kl

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from plain_models import BottleneckClassifier, load_digit_vectors


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    images, labels = load_digit_vectors()
    model = BottleneckClassifier()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(rule: Rule) -> tuple[float, float]:
        batch = torch.randint(len(images), (100,))
        logits, posterior = model(images[batch])
        kl = gaussian_kl(posterior, "mean")
        weight = rule(kl)
        loss = F.cross_entropy(logits, labels[batch]) + weight * kl
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return kl.item(), float(weight)

    return step


TASK = Task(
    "plain loop, information bottleneck",
    "scikit-learn",
    "KL of the code",
    "nats per example",
    (3.0, 6.0, 12.0),
    2_000,
    make_step,
    "handwritten digits of scikit-learn, a classifier with a stochastic code; fixed β 1e-3, and "
    "the nearest of 1e-3, 1e-2 and 1e-1",
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    weights = {f"β {beta:g}": beta for beta in (1e-3, 1e-2, 1e-1)}
    save_entries("information_bottleneck", compare(TASK, arguments.seeds, weights), arguments.out)
