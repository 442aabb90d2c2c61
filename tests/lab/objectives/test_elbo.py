"""Terms of the ELBO, free bits and per-latent KL weights, against torch.distributions."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from controlvae.distributions import Posterior, bernoulli
from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.models import ConvVAE
from controlvae.lab.objectives import Elbo, ObjectiveInputs, compute_divergence


@pytest.fixture
def posterior():
    mean = torch.tensor([[3.0, 0.1], [1.0, 0.3]], requires_grad=True)
    return Posterior(mean, torch.zeros(2, 2))


def test_terms_equal_those_of_torch_distributions():
    torch.manual_seed(0)
    model, x = ConvVAE((1, 16, 16), 3, (4, 4), 8), torch.rand(6, 1, 16, 16).round()
    logits, posterior = model(x, torch.randn(6, 3))
    terms = Elbo().terms(ObjectiveInputs(compute_divergence(posterior)))
    q = Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    kl = kl_divergence(q, Normal(0.0, 1.0))
    torch.testing.assert_close(terms.controlled, kl.sum(1).mean())
    torch.testing.assert_close(terms.divergence.kl, kl.sum(1).mean())
    torch.testing.assert_close(terms.divergence.per_latent, kl.mean(0))
    expected = -Bernoulli(logits=logits).log_prob(x).sum((1, 2, 3))
    torch.testing.assert_close(bernoulli(logits, x), expected)


def test_free_bits_bound_the_cost_and_stop_the_gradient(posterior):
    terms = Elbo(free_bits=0.5).terms(ObjectiveInputs(compute_divergence(posterior)))
    # The KL of a latent is half the mean of its squared means.
    assert terms.controlled.item() == pytest.approx((9 + 1) / 4 + 0.5)
    assert terms.divergence.kl.item() == pytest.approx((9 + 1 + 0.01 + 0.09) / 4)
    (gradient,) = torch.autograd.grad(terms.controlled, posterior.mean)
    assert gradient.tolist() == [[1.5, 0.0], [0.5, 0.0]]
    with pytest.raises(UserError, match=r"free_bits.*PI"):
        override(preset("shapes2d-quick"), ["objective.free_bits=0.5"])


def test_kl_weights_scale_gradients_but_not_the_measured_kl(posterior):
    divergence = compute_divergence(posterior)
    terms = Elbo().terms(ObjectiveInputs(divergence, kl_weights=torch.tensor([1.0, 3.0])))
    assert terms.controlled.item() == pytest.approx(terms.divergence.kl.item())
    (gradient,) = torch.autograd.grad(terms.controlled, posterior.mean)
    # The mean divided by two examples, times the weight.
    torch.testing.assert_close(gradient, torch.tensor([[1.5, 0.15], [0.5, 0.45]]))


def test_kl_weights_follow_schedules_and_repeat_the_last():
    sets = ["objective.kl_weights=(1,Points((10,20),(3,1)))"]
    objective = override(preset("shapes2d-quick"), sets).objective
    assert objective.kl_weights_at(4, 15.0) == [1, 2, 2, 2]
    assert objective.has_scheduled_kl_weights()
    assert not Elbo(kl_weights=(1.0, 2.0)).has_scheduled_kl_weights()
    assert Elbo().kl_weights_at(4, 15.0) == []


@pytest.mark.parametrize(
    "sets",
    [
        ["kl_weights=(1,0)"],
        ["kl_weights=(1,)", "free_bits=0.1"],
        [f"kl_weights=({','.join(11 * '1')})"],
    ],
    ids=["zero", "with free bits", "too many"],
)
def test_invalid_kl_weights_are_rejected(sets):
    with pytest.raises(UserError, match="kl_weights"):
        override(preset("shapes2d-quick"), [f"objective.{one}" for one in sets])
