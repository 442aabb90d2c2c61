"""Let a classifier of handwritten digits read 3 nats of each image: a variational bottleneck.

The loss is that of Alemi et al., *Deep Variational Information Bottleneck* (2017): cross-entropy
plus β times the KL of a stochastic code, which bounds the information about the image. The
controller sets β. `python examples/plain_vib.py --out kl.png` takes a few seconds.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from common import Trace, parse_arguments
from plain_models import BottleneckClassifier, load_digit_vectors

import controlvae as cv
from controlvae.distributions import gaussian_kl

_TEST_IMAGES = 400


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    images, labels = load_digit_vectors()
    model = BottleneckClassifier()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    control = cv.Controller(cv.Auto(target=3.0))
    trace = Trace(3.0, [], [])
    for _ in range(options.steps):
        batch = torch.randint(len(images) - _TEST_IMAGES, (100,))
        logits, posterior = model(images[batch])
        kl = gaussian_kl(posterior, "mean")
        loss = F.cross_entropy(logits, labels[batch]) + control.step(kl) * kl
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        trace.kl.append(kl.item())
        trace.beta.append(control.beta.item())
    logits, _ = model(images[-_TEST_IMAGES:])
    accuracy = (logits.argmax(1) == labels[-_TEST_IMAGES:]).double().mean()
    print(f"accuracy on {_TEST_IMAGES} test images {accuracy:.3f}")
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
