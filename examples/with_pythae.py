"""Keep the KL of pythae's VAE at 8 nats with pythae's trainer.

`pip install pythae`, then `python examples/with_pythae.py --out kl.png`.
"""

import tempfile
from collections.abc import Sequence

import torch
from common import Trace, binary_vectors, parse_arguments
from pythae.data.datasets import BaseDataset
from pythae.models import VAE, VAEConfig
from pythae.trainers import BaseTrainerConfig
from pythae.trainers.training_callbacks import TrainingCallback

import controlvae as cv
from controlvae.integrations.pythae import ControlledPythaeTrainer


class Recorder(TrainingCallback):
    """Callback that reads the controller after every step; pythae passes no KL to callbacks."""

    def __init__(self, target: float) -> None:
        self.trace, self.controller = Trace(target, [], []), None

    def on_train_step_end(self, *_: object, **__: object) -> None:
        stats = self.controller.stats()
        self.trace.kl.append(stats["measured"])
        self.trace.beta.append(stats["beta"])


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    data = torch.from_numpy(binary_vectors())
    model = VAE(VAEConfig(input_dim=(64,), latent_dim=8, reconstruction_loss="bce"))
    recorder = Recorder(8.0)
    with tempfile.TemporaryDirectory() as folder:
        settings = BaseTrainerConfig(
            folder,
            num_epochs=max(1, options.steps * 128 // len(data)),
            per_device_train_batch_size=128,
            learning_rate=1e-3,
            no_cuda=True,
        )
        trainer = ControlledPythaeTrainer(
            model,
            BaseDataset(data, torch.zeros(len(data))),
            training_config=settings,
            callbacks=[recorder],
            law=cv.Auto(target=8.0, reach_in=500),
        )
        recorder.controller = trainer.controller
        trainer.train()
    recorder.trace.draw(options.out)
    return recorder.trace


if __name__ == "__main__":
    main()
