"""Conditioning of a network on the rate."""

import copy

import pytest
import torch
from torch import nn

from controlvae.errors import UserError
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.models.conv_vae import ConvVAE
from controlvae.lab.models.rate_conditioning import at_rate, condition_on_rate

SET_POINTS = (2.0, 4.0, 8.0, 16.0)


class Chain(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def small_vae(seed=1):
    torch.manual_seed(seed)
    return ConvVAE((1, 16, 16), latents=3, channels=(4, 4), hidden=8)


def conditioned_vae():
    """Return a conditioned network whose modulation is not zero."""
    vae = small_vae()
    conditioning = condition_on_rate(vae, SET_POINTS)
    nn.init.normal_(conditioning.affine.weight, std=0.05)
    return vae, conditioning


def outputs(vae, x):
    posterior = vae.encode(x)
    return torch.cat(
        [posterior.mean, posterior.log_variance, vae.decode(posterior.mean).flatten(1)], 1
    )


def test_network_starts_as_the_unconditioned_one():
    plain, vae, x = small_vae(), small_vae(), torch.rand(5, 1, 16, 16)
    condition_on_rate(vae, SET_POINTS)
    for rate in (2.0, 5.3, 16.0):
        with at_rate(vae, rate):
            assert outputs(vae, x).equal(outputs(plain, x))


def test_each_example_has_the_rate_it_was_given():
    vae, conditioning = conditioned_vae()
    x = torch.rand(6, 1, 16, 16)
    with conditioning.at(torch.tensor([2.0, 5.0, 16.0]), repeats=2):
        together = outputs(vae, x)
    for row, rate in enumerate([2.0, 5.0, 16.0] * 2):
        with at_rate(vae, rate):
            torch.testing.assert_close(together[row : row + 1], outputs(vae, x[row : row + 1]))
    assert not together[0].allclose(together[1])


def test_rate_can_be_passed_to_encode_and_decode_and_has_a_default():
    vae, conditioning = conditioned_vae()
    x, z = torch.rand(2, 1, 16, 16), torch.randn(2, 3)
    middle = vae.decode(z, rate=(2.0 * 16.0) ** 0.5)
    torch.testing.assert_close(vae.decode(z), middle)
    conditioning.set_rate(4.0)
    torch.testing.assert_close(vae.decode(z), vae.decode(z, rate=4.0))
    torch.testing.assert_close(vae.encode(x).mean, vae.encode(x, rate=4.0).mean)


def test_copy_has_a_conditioning_of_its_own():
    vae, _ = conditioned_vae()
    x = torch.rand(2, 1, 16, 16)
    before = outputs(vae, x)
    other = copy.deepcopy(vae)
    other.rate_conditioning.set_rate(16.0)
    nn.init.normal_(other.rate_conditioning.affine.weight)
    assert outputs(vae, x).equal(before)
    assert not outputs(other, x).allclose(before)


def test_faster_layers_keep_the_conditioning():
    vae, _ = conditioned_vae()
    x = torch.rand(2, 1, 16, 16)
    before = outputs(vae, x)
    optimise_layers(vae)
    torch.testing.assert_close(outputs(vae, x), before)


def test_gradients_reach_the_conditioning_and_its_weights_are_saved():
    vae, conditioning = conditioned_vae()
    with conditioning.at(torch.tensor(SET_POINTS)):
        outputs(vae, torch.rand(4, 1, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in conditioning.parameters())
    assert "rate_conditioning.affine.weight" in vae.state_dict()


def test_linear_layers_over_sequences_are_modulated_along_their_last_axis():
    module = Chain(nn.Linear(3, 4), nn.Linear(4, 4))
    conditioning = condition_on_rate(module, SET_POINTS)
    nn.init.normal_(conditioning.affine.weight)
    x = torch.randn(2, 4, 3)  # as many places as channels
    with conditioning.at(8.0):
        torch.testing.assert_close(module(x)[:, 1], module(x[:, 1:2])[:, 0])


@pytest.mark.parametrize("rate", [1.9, 17.0, float("nan"), "8", True, None])
def test_rate_that_was_not_learnt_is_refused(rate):
    _, conditioning = conditioned_vae()
    with pytest.raises(UserError, match="from 2 to 16"):
        conditioning.set_rate(rate)


def test_unfit_networks_are_refused():
    with pytest.raises(UserError, match="takes no rate"):
        small_vae().encode(torch.rand(1, 1, 16, 16), rate=4.0)
    with pytest.raises(UserError, match="no convolution or linear layer"):
        condition_on_rate(Chain(nn.Embedding(3, 4)), SET_POINTS)
    vae, _ = conditioned_vae()
    with pytest.raises(UserError, match="already"):
        condition_on_rate(vae, SET_POINTS)
    with pytest.raises(UserError, match="put it into a module"):
        condition_on_rate(nn.Sequential(nn.Linear(2, 2)), SET_POINTS)
    module = Chain(nn.Unflatten(1, (2, 2)), nn.Flatten(0, 1), nn.Linear(2, 2))  # two rows each
    conditioning = condition_on_rate(module, SET_POINTS)
    with (
        pytest.raises(UserError, match="8 rows for a batch of 4"),
        conditioning.at(torch.tensor(SET_POINTS)),
    ):
        module(torch.rand(4, 4))
