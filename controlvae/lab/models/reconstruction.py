"""Reconstruction losses -log p(x|z) of a model, in nats per example."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from controlvae.lab.data.text.dialogs import DialogBatch
from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.models.dialog_vae import DialogVAE
from controlvae.lab.objectives.likelihood import Likelihood, pixel_nll

# Loss of each example, (batch,), from a model, z, x and the posterior's `given`.
ReconstructionLoss = Callable[[Any, Tensor, Any, Tensor | None], Tensor]


def reconstruction_loss(likelihood: Likelihood) -> ReconstructionLoss:
    """Return the function that computes -log p(x|z) of each example under `likelihood`."""
    if likelihood == "tokens":
        return sequence_nll
    return lambda model, z, x, context: _pixel_loss(likelihood, model, z, x)


def _pixel_loss(likelihood: Likelihood, model: Any, z: Tensor, x: Tensor) -> Tensor:
    if hasattr(model, "reconstruction"):  # a user-supplied model computes its own
        loss: Tensor = model.reconstruction(z, x)
        return loss
    return pixel_nll(likelihood)(model.decode(z), x, model.pixel_log_variance)


def token_nll(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return -log p(sentence|z): the cross-entropy summed over words and EOS, (..., batch).

    Padding costs nothing. The sum is in float32 whatever the type of the logits.

    Args:
        logits: Scores of the token at each place, (..., batch, T, vocabulary).
        tokens: Words, EOS, then PAD, (..., batch, T).
    """
    if logits.shape[:-1] != tokens.shape:
        raise ValueError(
            "logits must be (batch, T, vocabulary) for tokens (batch, T), "
            f"got {tuple(logits.shape)} and {tuple(tokens.shape)}"
        )
    flat = logits.reshape(-1, logits.shape[-1]).float()
    loss = F.cross_entropy(flat, tokens.reshape(-1), ignore_index=PAD, reduction="none")
    return loss.view(tokens.shape).sum(-1)


def sequence_nll(model: Any, z: Tensor, x: Tensor | DialogBatch, context: Tensor | None) -> Tensor:
    """Return -log p(x|z) of sentences, or of responses and their dialog acts, (batch,).

    Args:
        model: A `TextVAE` for sentences, or a `DialogVAE` for exchanges.
        z: Latents, (batch, latents).
        x: Sentences, (batch, T), or exchanges.
        context: Encoded context of the exchanges, or None to compute it.
    """
    if not isinstance(x, DialogBatch):
        return token_nll(model.decode(z, x), x)
    return words_nll(model, z, x, context) + act_nll(model, z, x, context)


def words_nll(model: DialogVAE, z: Tensor, x: DialogBatch, context: Tensor | None) -> Tensor:
    """Return -log p(words|z, context, act), on which the paper's dialog perplexity is based.

    Args:
        model: Model of the dialogs.
        z: Latents, (batch, latents).
        x: Exchanges.
        context: Encoded context of the exchanges, or None to compute it.
    """
    return token_nll(model.decode(z, x, context), x.response)


def act_nll(model: DialogVAE, z: Tensor, x: DialogBatch, context: Tensor | None) -> Tensor:
    """Return -log p(act|z, context), or zeros if the model has no dialog acts.

    Args:
        model: Model of the dialogs.
        z: Latents, (batch, latents).
        x: Exchanges.
        context: Encoded context of the exchanges, or None to compute it.
    """
    logits = model.act_logits(z, x, context)
    if logits is None:
        return z.new_zeros(len(z))
    return F.cross_entropy(logits.float(), x.act, reduction="none")
