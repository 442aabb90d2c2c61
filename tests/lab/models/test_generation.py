"""Text generation: probabilities, greedy and beam search, truncated sampling."""

import itertools
import math

import pytest
import torch
from text_models import VOCABULARY, make_text_vae

from controlvae.lab.data.text.vocabulary import BOS, EOS, PAD, UNK
from controlvae.lab.models.reconstruction import token_nll

METHODS = {
    "sample": {},
    "cool": {"temperature": 0.7, "top_k": 5},
    "greedy": {"temperature": 0},
    "beam": {"beam": 4},
}


def draw_latents(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_reported_log_probability_is_that_of_the_decoder(decoder):
    model, z = make_text_vae(decoder=decoder, sharpness=8), draw_latents(16, seed=1)
    for options in METHODS.values():
        tokens, log_probability = model.generate(z, max_tokens=12, **options)
        assert not (tokens == BOS).any()
        assert not (tokens[:, 0] == PAD).any()
        with torch.no_grad():
            expected = -token_nll(model.decode(z, tokens), tokens)
        assert torch.allclose(log_probability, expected, atol=1e-3)
        assert torch.equal(model.generate(z, max_tokens=12, **options).tokens, tokens)
    first, second = (model.generate(z, 12, seed=seed).tokens for seed in (1, 2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_narrow_sampling_is_greedy_and_beams_score_higher(decoder):
    model, z = make_text_vae(decoder=decoder, sharpness=2), draw_latents(32, seed=2)
    greedy = model.generate(z, max_tokens=10, temperature=0)
    for options in ({"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-6}):
        assert torch.equal(model.generate(z, max_tokens=10, **options).tokens, greedy.tokens)
    one, six = (model.generate(z, max_tokens=10, beam=beam).log_probability for beam in (1, 6))
    assert torch.allclose(one, greedy.log_probability, atol=1e-4)
    assert (six >= greedy.log_probability).all()
    assert (six > greedy.log_probability + 1e-3).any()


def test_wide_beam_finds_the_most_likely_sentence():
    model, z = make_text_vae(vocabulary=8, sharpness=6), draw_latents(3, seed=4)
    words = (UNK, 4, 5, 6, 7)
    best = torch.full((3,), -math.inf)
    for length in (1, 2, 3):
        last_tokens = (EOS,) if length < 3 else (EOS, *words)  # the limit also ends a sentence
        for *start, last in itertools.product(*[words] * (length - 1), last_tokens):
            tokens = torch.tensor([[*start, last]]).expand(3, -1)
            with torch.no_grad():
                best = torch.maximum(best, -token_nll(model.decode(z, tokens), tokens))
    found = model.generate(z, max_tokens=3, beam=36).log_probability
    assert torch.allclose(found, best, atol=1e-4)


def test_sampled_frequencies_match_the_models_probabilities():
    model, z = make_text_vae(sharpness=4), torch.zeros(20_000, 4)
    with torch.no_grad():
        expected = torch.softmax(model.decode(z[:1], torch.full((1, 1), EOS))[0, 0], 0)
    expected[[PAD, BOS]] = 0
    expected /= expected.sum()
    tokens = model.generate(z, max_tokens=1).tokens[:, 0]
    assert torch.allclose(tokens.bincount(minlength=VOCABULARY) / len(z), expected, atol=0.015)
    ranked = expected.sort(descending=True)
    top_3 = model.generate(z, max_tokens=1, top_k=3).tokens.flatten()
    assert set(top_3.tolist()) == set(ranked.indices[:3].tolist())
    count = int((ranked.values.cumsum(0) < 0.6).sum()) + 1
    nucleus = model.generate(z, max_tokens=1, top_p=0.6).tokens.flatten()
    assert set(nucleus.tolist()) == set(ranked.indices[:count].tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature .* -1.0"),
        ({"top_k": 0}, "top_k .* 0"),
        ({"top_p": 0.0}, "top_p .* 0.0"),
        ({"beam": 4, "top_k": 2}, "beam=4"),
        ({"max_tokens": 0}, "max_tokens .* 0"),
        ({"max_tokens": 400, "banned": (PAD, BOS, EOS)}, "positions .* 300"),
    ],
)
def test_generate_rejects_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_text_vae().generate(torch.zeros(1, 4), **options)
