"""The conditional VAE of dialogs: its size, dependencies and probabilities."""

import math

import pytest
import torch
from torch import nn

from controlvae.distributions import gaussian_kl
from controlvae.lab.data.text.synthetic_dialog import small_talk_dataset
from controlvae.lab.data.text.vocabulary import BOS, EOS, PAD
from controlvae.lab.models import DialogVAE
from controlvae.lab.models.dialog_vae import UtteranceEncoder
from controlvae.lab.models.reconstruction import act_nll, sequence_nll, words_nll
from controlvae.lab.objectives.bag_of_words import bag_of_words_nll


@pytest.fixture(scope="module")
def talk():
    return small_talk_dataset(40)


def make_dialog_vae(examples, with_acts=True):
    torch.manual_seed(3)
    names = examples.names
    sizes = {"latents": 4, "embedding": 6, "utterance": 5, "context": 7, "hidden": 8, "labels": 3}
    acts = len(names.acts) if with_acts else 0
    model = DialogVAE(len(names.words), len(names.topics), acts, **sizes).eval()
    with torch.no_grad():  # initial word probabilities are nearly equal
        for parameter in model.parameters():
            parameter.mul_(8)
    return model


def replace_fields(x, **fields):
    return type(x)(**{**vars(x), **fields})


def test_switchboard_model_has_the_released_parameters():
    model = DialogVAE(10_002, topics=70, acts=42)
    # torch's GRU has two biases, the released one has one.
    second = sum(p.numel() for name, p in model.named_parameters() if "bias_hh" in name)
    assert sum(p.numel() for p in model.parameters()) - second == 15_809_936


def test_utterance_encoder_equals_torch_bidirectional_gru():
    encoder, embedding = UtteranceEncoder(6, 5), nn.Embedding(30, 6)
    tokens, lengths = torch.randint(4, 30, (3, 9)), [3, 9, 6]
    for row, length in zip(tokens, lengths, strict=True):
        row[length - 1], row[length:] = EOS, PAD
    expected = nn.GRU(6, 5, batch_first=True, bidirectional=True)
    for name, parameter in expected.named_parameters():
        direction = encoder.back if name.endswith("_reverse") else encoder.onward
        parameter.data = getattr(direction.gru, name.removesuffix("_reverse")).data
    inputs = embedding(nn.functional.pad(tokens, (1, 0), value=BOS))
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, [n + 1 for n in lengths], batch_first=True, enforce_sorted=False
    )
    _, last = expected(packed)
    assert torch.allclose(encoder(tokens, embedding), torch.cat([last[0], last[1]], 1), atol=1e-6)


@pytest.mark.parametrize("with_acts", [True, False])
def test_padding_and_other_rows_change_nothing(talk, with_acts):
    model, indices = make_dialog_vae(talk, with_acts), torch.arange(12)
    posterior = model.encode(talk.batch(indices))
    z = posterior.sample(torch.randn(12, 4))
    loss = sequence_nll(model, z, talk.batch(indices), posterior.context)
    assert torch.allclose(loss, sequence_nll(model, z, talk.batch(indices), None), atol=1e-4)
    for row in indices:
        x = talk.batch(row[None], talk.lengths[row].tolist())
        alone = model.encode(x)
        assert torch.allclose(alone.mean, posterior.mean[row], atol=1e-5)
        assert torch.allclose(alone.prior.mean, posterior.prior.mean[row], atol=1e-5)
        loss_alone = sequence_nll(model, z[row][None], x, alone.context)
        assert torch.allclose(loss_alone, loss[row], atol=1e-3)


def test_only_the_posterior_depends_on_response_and_act(talk):
    model, x = make_dialog_vae(talk), talk.batch(torch.arange(4))
    before = model.encode(x)
    changes = {
        "response": x.response.roll(1, 0),
        "act": x.act.roll(1),
        "context": x.context.roll(1, 0),
        "topic": x.topic + 1,
        "profiles": x.profiles + 1,
        "floors": 1 - x.floors,
    }
    for name, value in changes.items():
        after = model.encode(replace_fields(x, **{name: value}))
        assert not torch.allclose(after.mean, before.mean)
        assert torch.equal(after.prior.mean, before.prior.mean) == (name in ("response", "act"))


def test_kl_stays_in_float32_under_autocast(talk):
    model, x = make_dialog_vae(talk), talk.batch(torch.arange(30))
    in_float32 = gaussian_kl(model.encode(x)).sum(1).mean()
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = gaussian_kl(model.encode(x)).sum(1).mean()
    assert under_autocast.dtype == torch.float32
    assert under_autocast != in_float32
    assert under_autocast.item() == pytest.approx(in_float32.item(), rel=0.02)


def test_log_probability_of_responses_is_that_of_the_decoder(talk):
    model, x = make_dialog_vae(talk, with_acts=False), talk.batch(torch.arange(8))
    with torch.no_grad():
        context = model.encode_context(x)
        z = model.compute_prior(context).sample(torch.randn(8, 4))
        tokens, log_probability = model.respond(z, context, max_tokens=12, seed=1, temperature=1.0)
        loss = words_nll(model, z, replace_fields(x, response=tokens), context)
    assert torch.allclose(log_probability, -loss, atol=1e-3)
    assert not act_nll(model, z, x, context).any()


def test_responses_use_the_expected_act_embedding(talk):
    model = make_dialog_vae(talk)
    with torch.no_grad():
        context = model.encode_context(talk.batch(torch.arange(3)))
        code = torch.cat([context, torch.randn(3, 4)], 1)
        p = torch.softmax(model.acts.guess(code), 1)
        expected = sum(p[:, [i]] * model.acts.embedding.weight[i] for i in range(p.shape[1]))
        hidden, act = model.start(code)
    assert torch.allclose(act, expected, atol=1e-6)
    assert torch.allclose(hidden, model.first(torch.cat([code, expected], 1)), atol=1e-5)


def test_bag_of_words_nll_sums_over_tokens_in_any_order():
    logits, tokens = torch.randn(2, 9), torch.tensor([[4, 5, 5, EOS], [6, EOS, PAD, PAD]])
    p = torch.softmax(logits, 1)
    expected = [
        -math.log(p[0, 4] * p[0, 5] ** 2 * p[0, EOS]),
        -math.log(p[1, 6] * p[1, EOS]),
    ]
    assert torch.allclose(bag_of_words_nll(logits, tokens, PAD), torch.tensor(expected), atol=1e-5)
