"""Properties that every objective has."""

from typing import get_args

import pytest
import torch

from controlvae.distributions import Posterior
from controlvae.lab.config import from_dict, preset, to_dict
from controlvae.lab.config.experiment import QUANTITY_LABELS, Experiment
from controlvae.lab.objectives import (
    BagOfWords,
    CriticOutput,
    Elbo,
    ObjectiveInputs,
    ObjectiveSettings,
    compute_divergence,
)

KINDS = get_args(ObjectiveSettings)
IMAGE_KINDS = [kind for kind in KINDS if kind is not BagOfWords]  # it needs a model of dialogs


def make_inputs(posterior, z, logits):
    critic = CriticOutput(logits, torch.tensor(0.5))
    return ObjectiveInputs(compute_divergence(posterior), posterior, z, 1_000, critic=critic)


@pytest.mark.parametrize("kind", KINDS)
def test_controlled_quantity_is_a_labelled_log_column(kind):
    assert kind.controlled_quantity in QUANTITY_LABELS
    assert kind.controlled_quantity in ("kl", *kind.extra_columns)


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_terms_have_one_value_per_model_and_extra_column(kind):
    torch.manual_seed(0)
    mean, log_variance, z = torch.randn(3, 2, 8, 5)  # two models, batch 8, five latents
    logits = torch.randn(2, 8, 2)
    inputs = make_inputs(Posterior(mean, log_variance), z, logits)
    stacked = kind().terms(inputs)
    logged = kind().logged(inputs, stacked)
    assert len(logged) == len(kind.extra_columns)
    for model in range(2):
        posterior = Posterior(mean[model], log_variance[model])
        alone = kind().terms(make_inputs(posterior, z[model], logits[model]))
        torch.testing.assert_close(stacked.controlled[model], alone.controlled)
        torch.testing.assert_close(stacked.divergence.kl[model], alone.divergence.kl)
        columns = kind().logged(make_inputs(posterior, z[model], logits[model]), alone)
        for both, one in zip(logged, columns, strict=True):
            torch.testing.assert_close(both.expand(2)[model], one)
        if isinstance(alone.uncontrolled, torch.Tensor):
            torch.testing.assert_close(stacked.uncontrolled[model], alone.uncontrolled)


@pytest.mark.parametrize("name", ["shapes2d-quick", "shapes2d-factor", "shapes2d-beta-tc"])
def test_settings_survive_a_round_trip_through_json(name):
    experiment = preset(name)
    assert from_dict(Experiment, to_dict(experiment)).objective == experiment.objective


def test_critic_spec_tells_an_engine_to_build_a_critic():
    with_critic = [kind for kind in KINDS if kind().critic_spec() is not None]
    assert [kind.__name__ for kind in with_critic] == ["TotalCorrelation"]
    assert all(kind.batches == 2 for kind in with_critic)
    assert Elbo.batches == 1
