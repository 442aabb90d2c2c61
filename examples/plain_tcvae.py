"""Hold the total correlation of a β-TCVAE's code at 0.5 nats on rendered 2D Shapes.

Chen et al., *Isolating Sources of Disentanglement in VAEs* (2018), write the KL as index-code
information + total correlation + dimension-wise KL, and put β on the total correlation alone. The
controller sets that β. `pip install 'controlvae[lab]'`, then
`python examples/plain_tcvae.py --out tc.png`.
"""

from collections.abc import Sequence

import torch
from common import Trace, parse_arguments
from plain_models import ShapesVAE, load_shapes, total_correlation

import controlvae as cv
from controlvae.distributions import bernoulli, gaussian_kl


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    images, model = load_shapes(), ShapesVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    control = cv.Controller(cv.Auto(target=0.5))
    trace = Trace(0.5, [], [])
    for _ in range(options.steps):
        batch = images[torch.randint(len(images), (128,))]
        logits, posterior, code = model(batch)
        kl, tc = gaussian_kl(posterior, "mean"), total_correlation(posterior, code)
        loss = bernoulli(logits, batch).mean() + kl + (control.step(tc) - 1) * tc
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        trace.kl.append(tc.item())
        trace.beta.append(control.beta.item())
    trace.draw(options.out, name="total correlation")
    return trace


if __name__ == "__main__":
    main()
