"""How soon each law brings a small VAE's KL to its target: `python examples/settling.py`, about a minute.

The model of the README: 4,096 binary vectors from 16 groups, linear encoder and decoder, 8 latents, Adam at 0.01,
batches of 128, one seed. Prints, for each law, the step from which means of 20 steps stay within 5 % of the target,
and how far the KL overshot it, as a share.
"""

import warnings

import torch
from common import SmallVAE

import controlvae as cv

STEPS, WINDOW = 3_000, 20


def trace(law: cv.control.Law, scale: float = 1.0, seed: int = 0) -> list[float]:
    """The KL of every step; `scale` puts the reconstruction into other units."""
    torch.manual_seed(seed)
    data = (torch.rand(4096, 64) < torch.rand(16, 64).repeat(256, 1)).float()
    model = SmallVAE()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    control, kls = cv.Controller(law), []
    for _ in range(STEPS):
        recon, kl = model(data[torch.randint(len(data), (128,))])
        optimiser.zero_grad()
        (scale * recon + control.step(kl.item()) * kl).backward()
        optimiser.step()
        kls.append(kl.item())
    return kls


def words(kls: list[float], target: float) -> str:
    means = [sum(kls[at : at + WINDOW]) / WINDOW for at in range(0, STEPS, WINDOW)]
    steps = range(WINDOW, STEPS + 1, WINDOW)
    found = cv.metrics.step_response(means, target, steps=list(steps), start=0.0, band=0.05)
    settled = "never" if found.settling_time is None else f"{found.settling_time:,.0f}"
    return f"{settled} / {found.overshoot:.2f}"


def main() -> None:
    warnings.simplefilter("ignore", cv.TuningWarning)
    laws = {
        "PI, ki 1e-3": lambda v: cv.PI(v, beta_max=float("inf")),
        "PI, ki 1e-4": lambda v: cv.PI(v, ki=1e-4, beta_max=float("inf")),
        **{f"Auto, T = {t:,}": lambda v, t=t: cv.Auto(v, t) for t in (500, 1_000, 2_000)},
    }
    print("| target | " + " | ".join(laws) + " |\n| ---: |" + " --- |" * len(laws))
    for target in (1.0, 3.0, 8.0, 12.0):
        print(f"| {target:g} | " + " | ".join(words(trace(law(target)), target) for law in laws.values()) + " |")
    for scale in (1e-3, 1 / 64, 30.0):
        for name in ("PI, ki 1e-3", "Auto, T = 500"):
            print(f"target 8, reconstruction x {scale:.3g}, {name}: {words(trace(laws[name](8.0), scale), 8.0)}")


if __name__ == "__main__":
    main()
