"""Convolutional VAEs: published sizes, seeded initialisation, and their optimised layers."""

import copy

import pytest
import torch
from torch import nn

from controlvae.distributions import bernoulli
from controlvae.lab.config import override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.models import ConvBatchNormVAE, ConvVAE, build
from controlvae.lab.objectives import compute_divergence

MODELS = {
    "one channel": (lambda: ConvVAE((1, 16, 16), 3, (4, 4), 8), (1, 16, 16)),
    "colour": (lambda: ConvVAE((3, 32, 32), 3, (4, 6, 8), 8), (3, 32, 32)),
    "dense": (lambda: ConvVAE((1, 16, 16), 3, (4, 4), 8, dense=(6, 5)), (1, 16, 16)),
    "batch norm": (lambda: ConvBatchNormVAE((3, 16, 16), 3, (4, 6)), (3, 16, 16)),
}


def test_networks_have_the_published_parameters():
    # Counted in the released code for ten latents.
    assert sum(p.numel() for p in ConvVAE().parameters()) == 763_285
    burgess = ConvVAE(channels=(32, 32, 32, 32), dense=(256,))
    assert sum(p.numel() for p in burgess.parameters()) == 502_005
    assert sum(p.numel() for p in ConvBatchNormVAE().parameters()) == 1_991_755
    with pytest.raises(ValueError, match="divisible by 16, got 40x40"):
        ConvVAE(shape=(1, 40, 40))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_optimised_layers_equal_those_of_torch(name, layout):
    torch.manual_seed(0)
    make_model, shape = MODELS[name]
    plain = make_model().double().to(memory_format=layout)
    fast = copy.deepcopy(plain)
    optimise_layers(fast)
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert not any(isinstance(layer, nn.ConvTranspose2d) for layer in fast.modules())
    x = torch.rand(5, *shape, dtype=torch.float64).contiguous(memory_format=layout)
    noise = torch.randn(5, plain.latents, dtype=torch.float64)
    results = []
    for model in (fast, plain):
        logits, posterior = model(x, noise)
        loss = bernoulli(logits, x).mean() + compute_divergence(posterior).kl
        results.append((logits, *torch.autograd.grad(loss, tuple(model.parameters()))))
    torch.testing.assert_close(*results)


def test_seed_determines_weights_without_the_global_generator():
    before = torch.random.get_rng_state()
    sets = ["data.images=128", "model.channels=(4,4,4)", "model.hidden=16"]
    experiments = [
        override(preset("shapes2d-quick"), [*sets, f"training.seed={seed}"]) for seed in (1, 1, 2)
    ]
    examples = load_dataset(experiments[0].data)
    models = [build(experiment, examples) for experiment in experiments]
    one, same, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert one.equal(same)
    assert not one.equal(other)
    assert torch.random.get_rng_state().equal(before)


def test_samples_and_reconstructions_are_pixel_means():
    model, x = ConvVAE((1, 16, 16), 3, (4, 4), 8), torch.rand(5, 1, 16, 16)
    samples = model.sample(4, torch.Generator().manual_seed(1))
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    assert samples.equal(torch.sigmoid(model.decode(z)))
    assert model.reconstruct(x).equal(torch.sigmoid(model.decode(model.encode(x).mean)))
