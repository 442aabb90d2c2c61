"""Keep the KL of a LightningModule at 8 nats, with gradients accumulated over two batches.

`pip install lightning`, then `python examples/with_lightning.py --out kl.png`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from common import SmallVAE, Trace, binary_vectors, parse_arguments
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

import controlvae as cv
from controlvae.integrations.lightning import KLControl


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.vae = SmallVAE()
        self.beta = 0.0  # written by the callback

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        recon, kl = self.vae(batch)
        self.log("kl", kl)
        return recon + self.beta * kl

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Recorder(Callback):
    """Callback that records what `KLControl` logs; a logger such as TensorBoard gets the same."""

    def __init__(self, target: float) -> None:
        self.trace = Trace(target, [], [])

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step > len(self.trace.kl):
            self.trace.kl.append(trainer.callback_metrics["control/kl"].item())
            self.trace.beta.append(trainer.callback_metrics["control/beta"].item())


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    loader = DataLoader(torch.from_numpy(binary_vectors()), batch_size=64, shuffle=True)
    control, recorder = KLControl(cv.Auto(target=8.0, reach_in=500)), Recorder(8.0)
    trainer = Trainer(
        max_steps=options.steps,
        max_epochs=-1,
        accumulate_grad_batches=2,
        callbacks=[control, recorder],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), loader)
    recorder.trace.draw(options.out)
    return recorder.trace


if __name__ == "__main__":
    main()
