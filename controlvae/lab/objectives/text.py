"""The likelihood of sentences and of responses, in nats per sentence."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from controlvae.lab.data.text.dialogs import Exchanges
from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.models import DialogVAE


def token_nll(logits: Tensor, tokens: Tensor) -> Tensor:
    """-log p(sentence|z): the cross-entropy summed over words and EOS; padding costs nothing. (..., batch)

    Args:
        logits: of the token at each place, (..., batch, T, vocabulary). Summed in float32 whatever their type.
        tokens: words, EOS, then PAD, (..., batch, T).
    """
    if logits.shape[:-1] != tokens.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(tokens.shape)}"
        raise ValueError(
            f"logits must be (batch, T, vocabulary) for tokens (batch, T), got {shapes}"
        )
    flat = logits.reshape(-1, logits.shape[-1]).float()
    cost = F.cross_entropy(flat, tokens.reshape(-1), ignore_index=PAD, reduction="none")
    return cost.view(tokens.shape).sum(-1)


def sequence_nll(model: Any, z: Tensor, x: Tensor | Exchanges, given: Tensor | None) -> Tensor:
    """-log p(x|z) of sentences; of a response its words and, where the model has acts, its act. (batch,)"""
    if not isinstance(x, Exchanges):
        return token_nll(model.decode(z, x), x)
    return words_nll(model, z, x, given) + act_nll(model, z, x, given)


def words_nll(model: DialogVAE, z: Tensor, x: Exchanges, given: Tensor | None) -> Tensor:
    """-log p(words|z, context, act): what the paper's dialog perplexity is of. (batch,)"""
    return token_nll(model.decode(z, x, given), x.response)


def act_nll(model: DialogVAE, z: Tensor, x: Exchanges, given: Tensor | None) -> Tensor:
    """-log p(act|z, context); nothing where the model has no acts. (batch,)"""
    logits = model.act_logits(z, x, given)
    return (
        z.new_zeros(len(z))
        if logits is None
        else F.cross_entropy(logits.float(), x.act, reduction="none")
    )


def bag_of_words(logits: Tensor, tokens: Tensor) -> Tensor:
    """-log p of a sentence's words and EOS in any order, all from one distribution, (batch, vocabulary). (batch,)

    Zhao et al., *Learning discourse-level diversity for neural dialog models using conditional VAEs*, 2017: a help in
    training, not a part of the bound.
    """
    cost = -torch.log_softmax(logits.float(), 1).gather(1, tokens)
    return torch.where(tokens == PAD, 0.0, cost).sum(1)
