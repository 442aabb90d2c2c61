"""The same network and data under pythae's own trainer (https://github.com/clementchadebec/benchmark_VAE).

Imported only where pythae is installed: `pip install 'controlvae[bench]'`.
"""

import logging
import tempfile
from collections.abc import Callable

import torch
from pythae.data.datasets import BaseDataset, collate_dataset_output
from pythae.models import BetaVAE, BetaVAEConfig
from pythae.models.base.base_utils import ModelOutput
from pythae.models.nn import BaseDecoder, BaseEncoder
from pythae.trainers import BaseTrainer, BaseTrainerConfig
from pythae.trainers.training_callbacks import CallbackHandler, TrainingCallback
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from controlvae.lab.config import Experiment
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.models import build
from controlvae.lab.models.base import VAE

SUBSET = 4_096  # pictures held as floats; the trainer fetches them one by one, so more would cost the same


class _Encoder(BaseEncoder):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> ModelOutput:
        mean, log_variance = self.layers(x).chunk(2, dim=1)
        return ModelOutput(embedding=mean, log_covariance=log_variance)


class _Decoder(BaseDecoder):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, z: Tensor) -> ModelOutput:
        return ModelOutput(
            reconstruction=torch.sigmoid(self.layers(z))
        )  # its losses take probabilities


class _Trainer(BaseTrainer):
    def _setup_callbacks(self) -> None:
        """None of its progress bars, which would cost it time."""
        self.callback_handler = CallbackHandler(callbacks=[TrainingCallback()], model=self.model)

    def advance(self, steps: int) -> None:
        """So many steps of its own `train_step`, on its own kind of loader: no checkpoints, no evaluation."""
        batch = self.training_config.per_device_train_batch_size
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=steps * batch)
        self.train_loader = DataLoader(
            self.train_dataset, batch, sampler=sampler, collate_fn=collate_dataset_output
        )
        self.train_step(epoch=1)


def pythae_loop(
    experiment: Experiment, examples: Dataset, device: torch.device
) -> Callable[[int], None]:
    """pythae's trainer over its β-VAE with our network in torch's layers: a constant weight, no controller."""
    logging.getLogger("pythae.trainers.base_trainer.base_trainer").setLevel(logging.WARNING)
    model = build(experiment, examples)
    assert isinstance(model, VAE)
    loss = "bce" if experiment.objective.likelihood == "bernoulli" else "mse"
    config = BetaVAEConfig(
        input_dim=examples.shape, latent_dim=model.latents, reconstruction_loss=loss, beta=4.0
    )
    vae = BetaVAE(config, _Encoder(model.encoder), _Decoder(model.decoder))
    chosen = torch.randperm(len(examples))[:SUBSET].to(device)
    data = BaseDataset(examples.batch(chosen).cpu(), torch.zeros(len(chosen)))
    adam, batch = experiment.optimiser, experiment.training.batch
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # it makes a folder for checkpoints, which are never written
        trainer = _Trainer(
            vae,
            data,
            training_config=BaseTrainerConfig(
                folder,
                per_device_train_batch_size=batch,
                learning_rate=adam.at(1.0),
                optimizer_cls="Adam",
                optimizer_params={"betas": (adam.beta1, adam.beta2)},
                no_cuda=device.type != "cuda",
            ),
        )
        trainer.prepare_training()
    return trainer.advance
