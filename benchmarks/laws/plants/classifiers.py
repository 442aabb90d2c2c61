"""Classifiers of digits with a constrained quantity: weights, confidence, drift."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from laws.data import load_array
from laws.plants.base import Losses, Plant, cross_entropy
from laws.stack import MLP, Linear, Stack


class Classifier(Plant):
    """Base of classifiers of digits.

    Args:
        stack: Stack of runs.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, batch: int = 32) -> None:
        super().__init__(stack)
        self.batch = batch
        self.data = load_array("digits"), load_array("digit_classes")

    def draw_batch(self) -> list[Tensor]:
        """Return digits and their classes."""
        return self.stack.batch(*self.data, size=self.batch)


class BayesianClassifier(Classifier):
    """Network with Gaussian weights; the controlled quantity is their KL per example.

    Blundell et al., *Weight uncertainty in neural networks*, 2015, with one sample of the weights
    per batch.

    Args:
        stack: Stack of runs.
        batch: Batch size.
        hidden: Hidden units.
    """

    def __init__(self, stack: Stack, batch: int = 64, hidden: int = 24) -> None:
        super().__init__(stack, batch)
        self.layers = []
        for inputs, outputs in ((64, hidden), (hidden, 10)):
            weight = Linear(stack, inputs, outputs)
            spread = stack.parameter(inputs, outputs, scale=0.0, shift=-3.0)
            self.layers.append((weight, spread))

    def losses(self, step: int) -> Losses:
        x, classes = self.draw_batch()
        kl = torch.zeros(())
        for number, (layer, log_scale) in enumerate(self.layers):
            noise = self.stack.normal(*log_scale.shape[1:])
            weight = layer.weight + log_scale.exp() * noise
            x = torch.baddbmm(layer.bias, x.tanh() if number else x, weight)
            # The prior has the standard deviation of the usual initial weights.
            width = layer.weight.shape[1] ** -0.5
            ratio = 2 * (log_scale - math.log(width))
            each = (layer.weight / width).square() + ratio.exp() - 1 - ratio
            kl = kl + 0.5 * each.sum((1, 2)) / len(self.data[0])
        return Losses(cross_entropy(x, classes).mean(-1), kl, kl)


class ConfidenceClassifier(Classifier):
    """Classifier whose predictions keep an entropy, which grows with its weight.

    Pereyra et al., *Regularizing neural networks by penalizing confident output distributions*,
    2017.

    Args:
        stack: Stack of runs.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, batch: int = 32) -> None:
        super().__init__(stack, batch)
        self.network = MLP(stack, 64, 32, 10)

    def losses(self, step: int) -> Losses:
        x, classes = self.draw_batch()
        logits = self.network(x)
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean(-1)
        return Losses(cross_entropy(logits, classes).mean(-1), -entropy, entropy)


class FineTunedClassifier(Classifier):
    """Classifier that learns new labels and stays near the predictions it started with.

    Args:
        stack: Stack of runs.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, batch: int = 32) -> None:
        super().__init__(stack, batch)
        self.network = MLP(stack, 64, 32, 10)
        # The reference keeps its own copy of the initial network.
        self.reference = [
            (layer.weight.detach().clone(), layer.bias.detach().clone())
            for layer in self.network.layers
        ]

    def losses(self, step: int) -> Losses:
        x, classes = self.draw_batch()
        log_p = self.network(x).log_softmax(-1)
        (first, first_bias), (last, last_bias) = self.reference
        hidden = torch.baddbmm(first_bias, x, first).tanh()
        log_r = torch.baddbmm(last_bias, hidden, last).log_softmax(-1)
        kl = (log_p.exp() * (log_p - log_r)).sum(-1).mean(-1)
        loss = F.nll_loss(log_p.flatten(0, 1), classes.flatten(), reduction="none")
        return Losses(loss.view(classes.shape).mean(-1), kl, kl)
