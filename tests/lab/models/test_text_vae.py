"""The VAE of sentences against torch's own layers, and its invariances."""

import itertools

import pytest
import torch
from text_models import NETWORKS, VOCABULARY, make_sentences, make_text_vae
from torch import nn

from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.models.reconstruction import token_nll
from controlvae.lab.models.text_vae import LSTMEncoder, TextVAE, TransformerDecoder
from controlvae.lab.models.transformer import Dropout


def test_default_text_vae_has_the_released_parameters():
    # Counted in the released code for the 10,003 words of Penn Treebank.
    assert sum(parameter.numel() for parameter in TextVAE(10_003).parameters()) == 8_882_816


def test_lstm_encoder_equals_torch_on_packed_sentences():
    encoder, tokens, lengths = LSTMEncoder(VOCABULARY, 8), make_sentences(3, 9, 6), [3, 9, 6]
    packed = nn.utils.rnn.pack_padded_sequence(
        encoder.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
    )
    _, (hidden, cell) = encoder.lstm(packed)
    expected = torch.cat([cell[0], hidden[0]], 1)
    assert torch.allclose(encoder(tokens, Dropout()), expected, atol=1e-6)


def test_recurrent_layers_stay_in_float32_under_autocast():
    model, tokens = make_text_vae("lstm", "lstm"), make_sentences(6, 9)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = model.encoder(tokens, Dropout())
    assert torch.equal(under_autocast, model.encoder(tokens, Dropout()))


def test_transformer_decoder_equals_torch():
    torch.manual_seed(0)
    decoder = TransformerDecoder(VOCABULARY, 4, 16, 2, 4, 32, 20)
    z, tokens = torch.randn(3, 4), make_sentences(5, 9, 7)
    x, memory = decoder.embedding(tokens) * 4 + decoder.places[:9], decoder.memory(z)[:, None]
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    for block in decoder.blocks:
        layer = nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
        with torch.no_grad():
            for theirs, ours in (
                (layer.self_attn, block.own),
                (layer.multihead_attn, block.memory),
            ):
                weights = [ours.query.weight, ours.key.weight, ours.value.weight]
                theirs.in_proj_weight.copy_(torch.cat(weights))
                theirs.out_proj.weight.copy_(ours.output.weight)
        layer.linear1, layer.linear2 = block.inner, block.outer
        x = layer(x, memory, mask, tgt_is_causal=True)
    expected = decoder.norm(x) @ decoder.embedding.weight.T
    assert torch.allclose(decoder(z, tokens, Dropout()), expected, atol=1e-5)


def test_token_nll_sums_over_words_and_eos():
    logits = torch.randn(2, 3, 5, VOCABULARY)
    tokens = torch.stack([make_sentences(5, 2, 4), make_sentences(3, 5, 1, seed=1)])
    expected = torch.zeros(2, 3)
    for place in itertools.product(range(2), range(3), range(5)):
        if tokens[place] != PAD:
            expected[place[:2]] -= torch.log_softmax(logits[place], 0)[tokens[place]]
    assert torch.allclose(token_nll(logits, tokens), expected, atol=1e-4)
    with pytest.raises(ValueError, match="logits must be"):
        token_nll(logits[:, :, :4], tokens)


@pytest.mark.parametrize(("encoder", "decoder"), NETWORKS)
def test_logits_depend_on_z_and_earlier_tokens_only(encoder, decoder):
    model, z, tokens = make_text_vae(encoder, decoder), torch.randn(2, 4), make_sentences(9, 9)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] - 4 + 1) % (VOCABULARY - 4) + 4
    before, after = model.decode(z, tokens), model.decode(z, changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])
    assert not torch.allclose(before[:, 0], model.decode(z + 1, tokens)[:, 0])


@pytest.mark.parametrize(("encoder", "decoder"), NETWORKS)
def test_padding_changes_nothing(encoder, decoder):
    model, noise = make_text_vae(encoder, decoder), torch.randn(3, 4)
    tokens = make_sentences(3, 9, 6)
    longer = torch.nn.functional.pad(tokens, (0, 8), value=PAD)
    (logits, posterior), (padded_logits, padded) = model(tokens, noise), model(longer, noise)
    assert torch.allclose(posterior.mean, padded.mean, atol=1e-6)
    assert torch.allclose(posterior.log_variance, padded.log_variance, atol=1e-6)
    assert torch.allclose(token_nll(logits, tokens), token_nll(padded_logits, longer), atol=1e-4)
    alone = model.encode(tokens[:1, :3])
    assert torch.allclose(alone.mean, posterior.mean[:1], atol=1e-6)


@pytest.mark.parametrize(("encoder", "decoder"), NETWORKS)
def test_custom_dropout_is_deterministic_and_reaches_every_parameter(encoder, decoder):
    model = make_text_vae(encoder, decoder, dropout=0.5)
    tokens, noise = make_sentences(6, 9), torch.randn(2, 4)

    def loss(make_dropout):
        z = model.encode(tokens, make_dropout()).sample(noise)
        return token_nll(model.decode(z, tokens, make_dropout()), tokens).sum()

    def masks(seed=1):
        generator = torch.Generator().manual_seed(seed)
        return lambda x: x * (torch.rand(x.shape, generator=generator) < 0.5) * 2

    without = loss(lambda: None)
    # Attention with a custom function equals the fused one.
    assert torch.allclose(loss(lambda: lambda x: x), without, atol=1e-4)
    model.train()
    assert loss(lambda: None) != loss(lambda: None)  # torch's generator advances
    assert loss(masks) == loss(masks) != without
    loss(masks).backward()
    without_gradient = {name for name, value in model.named_parameters() if value.grad is None}
    # Attention to one token has weight 1 for every query, so queries and keys have no gradient.
    unused = ["memory_norm.weight", "memory_norm.bias", "memory.query.weight", "memory.key.weight"]
    blocks = range(2 if decoder == "transformer" else 0)
    assert without_gradient == {
        f"decoder.blocks.{block}.{name}" for block in blocks for name in unused
    }
