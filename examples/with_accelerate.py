"""Keep the KL at 8 nats in a loop under Hugging Face's accelerate.

The accelerator's checkpoints contain the controller.

`pip install accelerate`, then `python examples/with_accelerate.py --out kl.png`.
"""

import tempfile
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from common import SmallVAE, Trace, binary_vectors, parse_arguments
from torch.utils.data import DataLoader

import controlvae as cv


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    accelerator, model = Accelerator(cpu=True), SmallVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(torch.from_numpy(binary_vectors()), batch_size=128, shuffle=True)
    model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    control = cv.Controller(cv.Auto(target=8.0, reach_in=500))
    accelerator.register_for_checkpointing(control)  # save_state and load_state now include it
    trace = Trace(8.0, [], [])
    while len(trace.kl) < options.steps:
        for x in loader:
            recon, kl = model(x)
            optimiser.zero_grad()
            accelerator.backward(recon + control.step(kl) * kl)
            optimiser.step()
            trace.kl.append(kl.item())
            trace.beta.append(control.beta.item())
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
