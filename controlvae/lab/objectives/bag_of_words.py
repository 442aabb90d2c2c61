"""Bag-of-words objective for dialogs: the ELBO plus predicting a response's words in any order."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from controlvae.lab.objectives.base import Objective, ObjectiveInputs, Terms
from controlvae.lab.objectives.likelihood import Likelihood
from controlvae.laws import Law


@dataclass(frozen=True)
class BagOfWords(Objective):
    """Reconstruction + weight x KL + the loss of predicting the response's words from z alone.

    Zhao et al., *Learning discourse-level diversity for neural dialog models using conditional
    variational autoencoders*, 2017. The last term is not part of the ELBO. It keeps z in use.

    Attributes:
        weight: Weight of the bag-of-words term.
    """

    weight: float = 1.0

    extra_columns: ClassVar[tuple[str, ...]] = ("bag_of_words",)
    needs_bag_of_words: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be positive and finite, got {self.weight}")

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of tokens, the only one for dialogs."""
        return "tokens"

    def terms(self, inputs: ObjectiveInputs) -> Terms:
        """Return the KL as the controlled term and the bag-of-words loss as uncontrolled."""
        assert inputs.posterior is not None
        model, x = inputs.model, inputs.x
        logits = model.bag_logits(inputs.z, x, inputs.posterior.context)
        loss = bag_of_words_nll(logits, x.response, model.padding_id).mean(-1)
        return Terms(
            inputs.divergence,
            controlled=inputs.divergence.kl,
            uncontrolled=self.weight * loss,
            extras=(loss.detach(),),
        )

    def check_fit(self, data: Literal["image", "text", "dialog"], law: Law, latents: int) -> None:
        """Raise ValueError for data other than dialogs."""
        if data != "dialog":
            raise ValueError(f"BagOfWords is for dialogs, got {data} data")


def bag_of_words_nll(logits: Tensor, tokens: Tensor, padding_id: int) -> Tensor:
    """Return -log p of a sentence's tokens in any order, all from one distribution, (batch,).

    Args:
        logits: One distribution over words per sentence, (batch, vocabulary).
        tokens: Words, end of sentence, then padding, (batch, T).
        padding_id: Token id of the padding, which costs nothing.
    """
    loss = -torch.log_softmax(logits.float(), 1).gather(1, tokens)
    return torch.where(tokens == padding_id, 0.0, loss).sum(1)
