"""Total correlation by critic and by minibatch, against closed forms, and its display."""

import json
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from controlvae.distributions import Posterior
from controlvae.lab.config import preset
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.rng import random_permutations
from controlvae.lab.models import Critic
from controlvae.lab.objectives import (
    BetaTC,
    CriticOutput,
    ObjectiveInputs,
    TotalCorrelation,
    compute_divergence,
)
from controlvae.lab.objectives.beta_tc import unbiased_total_correlation
from controlvae.lab.objectives.total_correlation import (
    critic_accuracy,
    critic_loss,
    critic_loss_gradient,
    density_ratio,
    shuffle_latents,
)
from controlvae.lab.reports.page import write_report
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.display import describe_progress
from controlvae.lab.training.loop import Progress


def beta_tc_terms(posterior, z, examples):
    inputs = ObjectiveInputs(compute_divergence(posterior), posterior, z, examples)
    return BetaTC().terms(inputs)


def draw_correlated(rho, count, generator):
    """Draw two latents of unit variance, whose total correlation is -log(1 - rho²) / 2."""
    a, b = torch.randn(2, count, generator=generator)
    return torch.stack([a, rho * a + math.sqrt(1 - rho**2) * b], dim=1)


def test_density_ratio_of_true_densities_is_the_total_correlation():
    z = draw_correlated(0.8, 200_000, torch.Generator().manual_seed(0))
    joint = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.8], [0.8, 1.0]]))
    log_joint, log_product = joint.log_prob(z), Normal(0.0, 1.0).log_prob(z).sum(1)
    logits = torch.stack([log_joint, log_product], dim=1)
    assert density_ratio(logits).item() == pytest.approx(-0.5 * math.log(1 - 0.64), abs=5e-3)


def test_trained_critic_estimates_the_total_correlation():
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    critic = Critic(2, (64, 64))
    adam = torch.optim.Adam(critic.parameters(), lr=3e-3)
    for _ in range(600):
        z, other = (draw_correlated(0.8, 512, generator) for _ in range(2))
        order = random_permutations(torch.randn(512, 2, generator=generator))
        loss = critic_loss(critic(z), critic(shuffle_latents(other, order)))
        adam.zero_grad()
        loss.backward()
        adam.step()
    z = draw_correlated(0.8, 20_000, generator)
    shuffled = shuffle_latents(z, random_permutations(torch.randn(20_000, 2, generator=generator)))
    assert density_ratio(critic(z)).item() == pytest.approx(-0.5 * math.log(1 - 0.64), abs=0.08)
    # Negative for independent latents: the ratio is an estimate, not a bound.
    assert density_ratio(critic(shuffled)).item() < 0
    assert 0.6 < critic_accuracy(critic(z), critic(shuffled)).item() < 0.9


def test_shuffling_removes_correlation_but_keeps_marginals():
    z = draw_correlated(0.99, 4_000, torch.Generator().manual_seed(2))
    shuffled = shuffle_latents(
        z, random_permutations(torch.randn(4_000, 2, generator=torch.Generator().manual_seed(3)))
    )
    assert shuffled.sort(0).values.equal(z.sort(0).values)
    assert abs(torch.corrcoef(shuffled.T)[0, 1]) < 0.06


def test_critic_loss_gradient_equals_autograd():
    joint, other = (torch.randn(3, 8, 2, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(critic_loss(joint, other).sum(), (joint, other))
    torch.testing.assert_close(critic_loss_gradient(joint, other), expected)


def test_factor_vae_controls_the_correlation_and_not_the_kl():
    posterior, logits = Posterior(*torch.randn(2, 6, 3)), torch.randn(6, 2)
    terms = TotalCorrelation().terms(
        ObjectiveInputs(
            compute_divergence(posterior), critic=CriticOutput(logits, torch.tensor(0.5))
        )
    )
    q = Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    torch.testing.assert_close(terms.uncontrolled, kl_divergence(q, Normal(0.0, 1.0)).sum(1).mean())
    torch.testing.assert_close(terms.controlled, (logits[:, 0] - logits[:, 1]).mean())


def test_minibatch_terms_equal_explicit_loops():
    torch.manual_seed(4)
    batch, latents, examples = 5, 3, 1_000
    posterior = Posterior(*torch.randn(2, batch, latents).double())
    z = posterior.sample(torch.randn(batch, latents).double())
    q = Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    log_q_z, log_product, log_conditional = [], [], []
    for i in range(batch):
        densities = torch.stack(
            [Normal(q.mean[j], q.stddev[j]).log_prob(z[i]) for j in range(batch)]
        )
        log_q_z.append(torch.log(densities.sum(1).exp().sum() / (batch * examples)))
        log_product.append(
            sum(torch.log(densities[:, k].exp().sum() / (batch * examples)) for k in range(latents))
        )
        log_conditional.append(densities[i].sum())
    log_q_z, log_product, log_conditional = map(
        torch.stack, (log_q_z, log_product, log_conditional)
    )
    prior = Normal(0.0, 1.0).log_prob(z).sum(1)
    terms = beta_tc_terms(posterior, z, examples)
    torch.testing.assert_close(terms.controlled, (log_q_z - log_product).mean())
    # At weight 1 the terms add up to the sampled KL.
    torch.testing.assert_close(
        terms.uncontrolled + terms.controlled, (log_conditional - prior).mean()
    )
    stacked = beta_tc_terms(
        Posterior(*(v.expand(2, -1, -1) for v in posterior[:2])),
        z.expand(2, -1, -1),
        examples,
    )
    torch.testing.assert_close(stacked.controlled, terms.controlled.expand(2))


def test_default_critic_has_the_published_parameters():
    assert sum(p.numel() for p in Critic(10).parameters()) == 4_017_002


def test_minibatch_estimate_of_uninformative_latents_is_the_bias():
    posterior = Posterior(torch.zeros(64, 10), torch.zeros(64, 10))
    terms = beta_tc_terms(posterior, torch.randn(64, 10), 20_000)
    assert terms.controlled.item() == pytest.approx(9 * math.log(20_000), rel=1e-5)


def gaussian_codes(rho, variance, latents, batch, generator):
    """Draw log q(z_i | x_j) for codes from N(0, C), C with correlation rho; (i, j, latents)."""
    identity = torch.eye(latents, dtype=torch.float64)
    covariance = (1 - rho) * identity + rho
    root = torch.linalg.cholesky(covariance - variance * identity)
    draw = torch.randn(2, batch, latents, generator=generator, dtype=torch.float64)
    mean = draw[0] @ root.T
    z = mean + math.sqrt(variance) * draw[1]
    return Normal(mean, math.sqrt(variance)).log_prob(z.unsqueeze(1)), covariance


@pytest.mark.parametrize(
    ("batch", "repetitions", "rho", "variance", "latents"),
    [
        (64, 1_000, 0.5, 0.4, 2),
        (64, 1_000, 0.8, 0.15, 2),
        (64, 600, 0.3, 0.6, 3),
        (512, 30, 0.4, 0.3, 3),
        (512, 20, 0.3, 0.5, 10),
    ],
)
def test_logged_estimate_is_unbiased_for_gaussian_codes(batch, repetitions, rho, variance, latents):
    generator = torch.Generator().manual_seed(5)
    estimates = []
    for _ in range(repetitions):
        log_density, covariance = gaussian_codes(rho, variance, latents, batch, generator)
        estimates.append(unbiased_total_correlation(log_density, 1_000_000))
    values = torch.stack(estimates)
    error = values.std() / math.sqrt(repetitions)
    truth = -0.5 * torch.logdet(covariance)
    assert abs(values.mean() - truth) < 3.5 * error
    assert error < 0.1 * truth


def test_logged_estimate_of_all_examples_is_that_of_their_mixture():
    generator = torch.Generator().manual_seed(6)
    log_density, _ = gaussian_codes(0.4, 0.3, 3, 40, generator)
    mixture = torch.logsumexp(log_density.sum(-1), 1) - math.log(40)
    marginals = (torch.logsumexp(log_density, 1) - math.log(40)).sum(-1)
    estimate = unbiased_total_correlation(log_density, 40)
    torch.testing.assert_close(estimate, (mixture - marginals).mean())


def logged_columns(posterior, z, examples=20_000):
    inputs = ObjectiveInputs(compute_divergence(posterior), posterior, z, examples)
    return BetaTC().logged(inputs, BetaTC().terms(inputs))


def test_log_has_the_corrected_estimate_and_the_loss_the_other():
    torch.manual_seed(7)
    posterior = Posterior(*torch.randn(2, 64, 4))
    z = posterior.sample(torch.randn(64, 4))
    terms = beta_tc_terms(posterior, z, 20_000)
    logged, bias = logged_columns(posterior, z)
    torch.testing.assert_close(logged + bias, terms.controlled)
    assert bias > 2.5 * math.log(20_000)
    both = Posterior(*(v.expand(2, -1, -1) for v in posterior[:2]))
    torch.testing.assert_close(logged_columns(both, z.expand(2, -1, -1))[0], logged.expand(2))
    weights = [v.clone().requires_grad_() for v in posterior[:2]]
    assert not any(v.requires_grad for v in logged_columns(Posterior(*weights), z))


SHOWN = {
    "shapes2d-factor": ({"tc": 0.2, "critic_accuracy": 0.61}, "TC 0.20 (critic 61% right)"),
    "shapes2d-beta-tc": ({"tc": 90.15}, "batch TC 90.15"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_progress_shows_critic_accuracy_or_bias(name):
    measured, words = SHOWN[name]
    row = torch.tensor([[measured.get(column, 1.0) for column in row_columns(preset(name))]])
    assert f"  {words}  β" in describe_progress(Progress(5, row, [None], 1.0, []), [preset(name)])


def test_report_shows_critic_accuracy_and_bias(tmp_path):
    folders = [RunFolder(tmp_path / name) for name in SHOWN]
    for folder, (name, (measured, _)) in zip(folders, SHOWN.items(), strict=True):
        folder.create(preset(name), "controlvae train ...")
        line = {
            "kl": 4.0,
            "reconstruction": 9.0,
            "beta": 6.0,
            "target": None,
            "kl_per_latent": [4.0, 0.0],
            **measured,
        }
        folder.log_file.write_text(
            "".join(json.dumps({"step": 500 * n, **line}) + "\n" for n in range(1, 30))
        )
    page = write_report(folders, tmp_path / "both.html").read_text()
    # The log line lacks `tc_bias`, so it is one of version 0.1.
    assert "<td>0.20</td><td>90.15 (biased)</td></tr>" in page
    assert "<td>0.61</td><td>–</td></tr>" in page
    assert (
        page.count("too high by about (latents − 1) log(examples)") == 2
    )  # under the curve and the numbers
    assert "For shapes2d-beta-tc, the estimate is that of a minibatch" in page
    assert "biased" not in write_report(folders[:1], tmp_path / "one.html").read_text()
    log = folders[1].log_file
    log.write_text(log.read_text().replace('"tc": 90.15', '"tc": 0.15, "tc_bias": 90.0'))
    corrected = write_report(folders[1:], tmp_path / "corrected.html").read_text()
    assert "0.15 (batch)</td>" in corrected
    assert "biased" not in corrected
    assert corrected.count("with its bias removed") == 2
