"""Baseline for `bench`: the same network and data under the trainer of pythae.

Needs pythae (https://github.com/clementchadebec/benchmark_VAE):
`pip install 'controlvae[bench]'`.
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

# Images held as floats. The trainer fetches them one by one, so more would not be slower.
_SUBSET = 4_096


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
        # The losses of pythae take probabilities.
        return ModelOutput(reconstruction=torch.sigmoid(self.layers(z)))


class _Trainer(BaseTrainer):
    def _setup_callbacks(self) -> None:
        """Skip the progress bars, which would cost time."""
        self.callback_handler = CallbackHandler(callbacks=[TrainingCallback()], model=self.model)

    def advance(self, steps: int) -> None:
        """Train with the trainer's `train_step` and loader, without checkpoints and evaluation."""
        batch = self.training_config.per_device_train_batch_size
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=steps * batch)
        self.train_loader = DataLoader(
            self.train_dataset, batch, sampler=sampler, collate_fn=collate_dataset_output
        )
        self.train_step(epoch=1)


def pythae_loop(
    experiment: Experiment, examples: Dataset, device: torch.device
) -> Callable[[int], None]:
    """Return a function that trains steps of pythae's β-VAE with our network.

    The weight is constant and there is no controller.

    Args:
        experiment: Experiment whose network and optimiser are used.
        examples: Training set.
        device: Device to train on.
    """
    logging.getLogger("pythae.trainers.base_trainer.base_trainer").setLevel(logging.WARNING)
    model = build(experiment, examples)
    assert isinstance(model, VAE)
    loss = "bce" if experiment.objective.likelihood == "bernoulli" else "mse"
    config = BetaVAEConfig(
        input_dim=examples.shape, latent_dim=model.latents, reconstruction_loss=loss, beta=4.0
    )
    vae = BetaVAE(config, _Encoder(model.encoder), _Decoder(model.decoder))
    indices = torch.randperm(len(examples))[:_SUBSET].to(device)
    data = BaseDataset(examples.batch(indices).cpu(), torch.zeros(len(indices)))
    adam, batch = experiment.adam, experiment.training.batch
    # The trainer creates a folder for checkpoints, which are never written.
    with tempfile.TemporaryDirectory() as folder:
        settings = BaseTrainerConfig(
            folder,
            per_device_train_batch_size=batch,
            learning_rate=adam.at(1.0),
            optimizer_cls="Adam",
            optimizer_params={"betas": (adam.beta1, adam.beta2)},
            no_cuda=device.type != "cuda",
        )
        trainer = _Trainer(vae, data, training_config=settings)
        trainer.prepare_training()
    return trainer.advance
