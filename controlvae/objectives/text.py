"""The likelihood of sentences, in nats per sentence."""

import torch.nn.functional as F
from torch import Tensor

from controlvae.data.vocabulary import PAD


def token_nll(logits: Tensor, tokens: Tensor) -> Tensor:
    """-log p(sentence|z): the cross-entropy summed over words and EOS; padding costs nothing. (..., batch)

    Args:
        logits: of the token at each place, (..., batch, T, vocabulary). Summed in float32 whatever their type.
        tokens: words, EOS, then PAD, (..., batch, T).
    """
    if logits.shape[:-1] != tokens.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(tokens.shape)}"
        raise ValueError(f"logits must be (batch, T, vocabulary) for tokens (batch, T), got {shapes}")
    flat = logits.reshape(-1, logits.shape[-1]).float()
    cost = F.cross_entropy(flat, tokens.reshape(-1), ignore_index=PAD, reduction="none")
    return cost.view(tokens.shape).sum(-1)
