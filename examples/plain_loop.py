"""Keep the KL of a VAE at 8 nats in a plain PyTorch loop.

`python examples/plain_loop.py --out kl.png` takes a few seconds.
"""

from collections.abc import Sequence

import torch
from common import SmallVAE, Trace, binary_vectors, parse_arguments

import controlvae as cv


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    data, model = torch.from_numpy(binary_vectors()), SmallVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    control = cv.Controller(cv.Auto(target=8.0, reach_in=500))
    trace = Trace(8.0, [], [])
    for _ in range(options.steps):
        recon, kl = model(data[torch.randint(len(data), (128,))])
        loss = recon + control.step(kl) * kl  # the one changed line
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        trace.kl.append(kl.item())
        trace.beta.append(control.beta.item())
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
