"""The parts of a step: random streams, batch order, data, model, terms; and the loop's engine interface."""

import copy
import math
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Bernoulli, Normal, kl_divergence

import controlvae as cv
from controlvae.distributions import Posterior, bernoulli, gaussian
from controlvae.errors import UserError
from controlvae.lab.config import Adam, Shapes2D, override, preset
from controlvae.lab.data import dsprites as shapes2d
from controlvae.lab.data import sprite_renderer as sprites
from controlvae.lab.data.dataset import BatchOrder, BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.fast_layers import optimise_layers
from controlvae.lab.engines.optimiser import NetworkOptimiser
from controlvae.lab.engines.rng import noise_key, normal_noise
from controlvae.lab.models import ConvBatchNormVAE, ConvVAE, build
from controlvae.lab.objectives import Elbo, ObjectiveInputs, compute_divergence
from controlvae.lab.objectives.total_correlation import min_total_correlation
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training
from controlvae.lab.training.loop import Run, train_runs
from controlvae.lab.training.restore import Session
from controlvae.laws import Points

TINY = ["data.images=128", "training.batch=8", "model.channels=(4,4,4)", "model.hidden=16"]


def noise(seeds, steps, shape=(64, 10)):
    keys = torch.tensor([noise_key(seed) for seed in seeds])
    return normal_noise(keys[:, None], torch.as_tensor(steps)[None], shape)


def test_noise_is_standard_normal_and_its_streams_are_independent():
    draws = noise(range(4), range(2_000)).double()  # (seeds, steps, 64, 10)
    assert stats.kstest(draws.flatten()[::7].numpy(), "norm").pvalue > 1e-3
    assert draws.std() == pytest.approx(1.0, abs=2e-3)
    by_seed = draws.flatten(1)
    across = torch.corrcoef(by_seed) - torch.eye(4, dtype=torch.float64)
    in_time = [
        torch.corrcoef(torch.stack([by_seed[0, :-lag], by_seed[0, lag:]]))[0, 1]
        for lag in (1, 10, 640)
    ]
    assert max(across.abs().max(), *map(abs, in_time)) < 5 / by_seed.shape[1] ** 0.5


def test_noise_depends_on_seed_and_step_alone():
    together = noise([1, 2, 3], range(5))
    assert torch.equal(together[1, 3], noise([2], [3])[0, 0])
    assert noise([1], range(1000), (640,)).abs().max() < 6


def test_an_epoch_meets_every_example_once_in_a_new_order():
    order = BatchOrder(count=103, batch=10, seed=4)
    epochs = [
        torch.cat([order.indices(step) for step in range(e * 10, e * 10 + 10)]).tolist()
        for e in range(2)
    ]
    assert all(len(set(epoch)) == 100 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert BatchOrder(103, 10, seed=4).indices(13).equal(order.indices(13))
    assert not BatchOrder(103, 10, seed=5).indices(13).equal(order.indices(13))
    with pytest.raises(UserError, match="at least as many"):
        BatchOrder(5, 10, seed=1)


def test_bits_give_back_their_pictures():
    pictures = np.random.default_rng(1).integers(0, 2, (20, 1, 16, 16), dtype=np.uint8)
    images = BinaryImages(
        torch.from_numpy(np.packbits(pictures.reshape(20, -1), axis=1)), (1, 16, 16), "random"
    )
    chosen = torch.tensor([3, 19, 3, 0])
    assert torch.equal(images.batch(chosen), torch.from_numpy(pictures[chosen]).float())


def test_the_original_file_is_used_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes2d, "IMAGE_COUNT", 3_000)  # the whole file would take 3 GB to write
    pictures = sprites.render(np.arange(3_000))
    pictures[:, 0, 0] = 1  # a mark that no rendered picture has
    np.savez_compressed(tmp_path / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", imgs=pictures)
    images = load_dataset(Shapes2D(), tmp_path)
    assert "original" in images.source
    assert (
        images.batch(torch.arange(3_000))[:, 0].numpy().astype(np.uint8).tobytes()
        == pictures.tobytes()
    )
    (tmp_path / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz").write_bytes(b"PK broken")
    with pytest.raises(UserError, match="cannot be read as dSprites"):
        load_dataset(Shapes2D(images=50), tmp_path)


def test_small_shapes_are_every_second_pixel():
    small, large = load_dataset(Shapes2D(size=32, images=40)), load_dataset(Shapes2D(images=40))
    every = torch.arange(40)
    assert torch.equal(small.batch(every), large.batch(every)[:, :, ::2, ::2])
    assert small.factors.shape == (40, 5)


def test_the_appendix_network_has_its_parameters():
    # Counted in the released code for z = 10.
    assert sum(p.numel() for p in ConvVAE().parameters()) == 763_285
    burgess = ConvVAE(channels=(32, 32, 32, 32), dense=(256,))
    assert sum(p.numel() for p in burgess.parameters()) == 502_005
    with pytest.raises(ValueError, match="divisible by 16, got 40x40"):
        ConvVAE(shape=(1, 40, 40))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("model", [ConvVAE((3, 32, 32)), ConvVAE(dense=(32,)), ConvBatchNormVAE()])
def test_optimised_layers_equal_those_of_torch(model, layout):
    torch.manual_seed(0)
    plain = model.double().to(memory_format=layout)
    fast = copy.deepcopy(plain)
    optimise_layers(fast)
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert not any(isinstance(layer, nn.ConvTranspose2d) for layer in fast.modules())
    channels = plain.encoder[0].in_channels
    size = {1: 64, 3: 32 if isinstance(model, ConvVAE) else 128}[channels]
    x = torch.rand(2, channels, size, size, dtype=torch.float64).contiguous(memory_format=layout)
    noise_ = torch.randn(2, model.latents, dtype=torch.float64)
    results = []
    for each in (fast, plain):
        logits, posterior = each(x, noise_)
        loss = bernoulli(logits, x).mean() + compute_divergence(posterior).kl
        results.append((logits, *torch.autograd.grad(loss, tuple(each.parameters()))))
    torch.testing.assert_close(*results)


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    experiments = [
        override(preset("shapes2d-quick"), [*TINY, f"training.seed={seed}"]) for seed in (1, 1, 2)
    ]
    examples = load_dataset(experiments[0].data)
    models = [build(experiment, examples) for experiment in experiments]
    one, same, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert one.equal(same)
    assert not one.equal(other)
    assert torch.random.get_rng_state().equal(before)


def test_terms_are_those_of_torch_distributions():
    torch.manual_seed(0)
    model, x, noise_ = (
        ConvVAE((1, 16, 16), 3, (4, 4), 8),
        torch.rand(6, 1, 16, 16).round(),
        torch.randn(6, 3),
    )
    logits, posterior = model(x, noise_)
    terms = Elbo().terms(ObjectiveInputs(compute_divergence(posterior)))
    q = Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    kl = kl_divergence(q, Normal(0.0, 1.0))
    torch.testing.assert_close(terms.divergence.kl, kl.sum(1).mean())
    torch.testing.assert_close(terms.divergence.per_latent, kl.mean(0))
    torch.testing.assert_close(
        bernoulli(logits, x), -Bernoulli(logits=logits).log_prob(x).sum((1, 2, 3))
    )


def test_a_gaussian_is_that_of_torch_distributions_and_its_best_variance_the_mean_square():
    torch.manual_seed(0)
    logits, x = (
        torch.randn(2, 3, 1, 8, 8, dtype=torch.float64),
        torch.rand(2, 3, 1, 8, 8, dtype=torch.float64),
    )
    errors = (torch.sigmoid(logits) - x).square().flatten(1).mean(1)  # of two models
    log_variance = errors.log().requires_grad_()
    nats = gaussian(logits, x, log_variance)
    scale = errors.sqrt().view(2, 1, 1, 1, 1)
    torch.testing.assert_close(
        nats, -Normal(torch.sigmoid(logits), scale).log_prob(x).flatten(2).sum(2)
    )
    (gradient,) = torch.autograd.grad(nats.sum(), log_variance)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_free_bits_cost_no_less_and_pull_no_harder():
    posterior = Posterior(
        torch.tensor([[3.0, 0.1], [1.0, 0.3]], requires_grad=True), torch.zeros(2, 2)
    )
    terms = Elbo(free_bits=0.5).terms(ObjectiveInputs(compute_divergence(posterior)))
    assert terms.controlled.item() == pytest.approx(
        (9 + 1) / 4 + 0.5
    )  # KL of a latent: mean of its squared means / 2
    assert terms.divergence.kl.item() == pytest.approx((9 + 1 + 0.01 + 0.09) / 4)
    (gradient,) = torch.autograd.grad(terms.controlled, posterior.mean)
    assert gradient.tolist() == [[1.5, 0.0], [0.5, 0.0]]
    with pytest.raises(UserError, match="open-loop weight"):
        override(preset("shapes2d-quick"), ["objective.free_bits=0.5"])


def test_kl_weights_scale_gradients_but_not_the_controlled_kl():
    posterior = Posterior(
        torch.tensor([[3.0, 0.1], [1.0, 0.3]], requires_grad=True), torch.zeros(2, 2)
    )
    inputs = ObjectiveInputs(compute_divergence(posterior), kl_weights=torch.tensor([1.0, 3.0]))
    terms = Elbo().terms(inputs)
    assert terms.controlled.item() == pytest.approx(terms.divergence.kl.item())
    (gradient,) = torch.autograd.grad(terms.controlled, posterior.mean)
    torch.testing.assert_close(
        gradient, torch.tensor([[1.5, 0.15], [0.5, 0.45]])
    )  # mean / 2 examples x price
    falling = override(
        preset("shapes2d-quick"), ["objective.kl_weights=(1,Points((10,20),(3,1)))"]
    ).objective
    assert falling.kl_weights_at(4, 15.0) == [1, 2, 2, 2]
    too_many = ",".join(11 * "1")
    for sets in (
        ["kl_weights=(1,0)"],
        ["kl_weights=(1,)", "free_bits=0.1"],
        [f"kl_weights=({too_many})"],
    ):
        with pytest.raises(UserError, match="kl_weights"):
            override(preset("shapes2d-quick"), [f"objective.{one}" for one in sets])


def test_a_model_trains_the_same_alone_or_beside_others():
    experiments = [
        override(preset("shapes2d-quick"), [*TINY, f"training.seed={seed}"]) for seed in (1, 2)
    ]
    examples = load_dataset(experiments[0].data)
    alone = EagerEngine(experiments[1:], examples, torch.device("cpu"))
    beside = EagerEngine(experiments, examples, torch.device("cpu"))
    assert alone.advance(30)[:, 0].equal(beside.advance(30)[:, 1])


def test_asked_to_stop_at_its_last_step_a_run_still_leaves_a_checkpoint_of_it(tmp_path):
    experiment = override(preset("shapes2d-quick"), [*TINY, "training.steps=12"])
    folder = RunFolder(tmp_path / "run")
    folder.create(experiment, "by hand")
    engine = EagerEngine([experiment], load_dataset(experiment.data), torch.device("cpu"))
    assert (
        list(train_runs([Run.open(folder)], engine, stop=lambda: engine.step == 12))[-1].step == 12
    )
    assert latest_step(folder.checkpoints) == 12


def test_a_weight_that_noise_frees_for_moments_is_still_at_its_bound(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(preset("celeba-control-155"), "")
    run = Run.open(folder)
    line = {"saturated": 0.85, "target": 155.0}
    for step in range(1, 61):  # swings from bound to bound, then is at one of them, then arrives
        beta, kl = (0.4, 160.9) if step < 21 else (0.9997, 160.9 if step < 41 else 156.0)
        run.monitor.check({**line, "step": step, "beta": beta, "kl": kl})
    run.logger.close()
    events = [(event["event"], event["step"]) for event in folder.events()]
    assert events == [("target out of reach", 30), ("target in reach again", 41)]
    assert folder.events()[0]["bound"] == 1.0


def test_a_session_says_how_it_ended_and_frees_its_folders_whatever_happens(tmp_path):
    experiment = override(
        preset("shapes2d-quick"), [*TINY, "training.steps=8", "training.log_every=4"]
    )
    folder, examples = RunFolder(tmp_path / "run"), load_dataset(experiment.data)
    folder.create(experiment, "")
    for left_by in ("an error", "a break", "a request", "its end"):
        engine, runs = EagerEngine([experiment], examples, torch.device("cpu")), [Run.open(folder)]
        with suppress(KeyboardInterrupt), Session(runs, engine, "cpu"):
            for progress in train_runs(
                runs, engine, stop=lambda left_by=left_by: left_by == "a request"
            ):
                if left_by == "an error":
                    raise KeyboardInterrupt
                if (
                    left_by == "a break" and progress.step == 4
                ):  # a line of the log, and no checkpoint
                    break
        assert not in_training(folder)
    events = [event["event"] for event in folder.events()]
    assert events == ["started", "started", "started", "saved", "stopped", "resumed", "finished"]


def test_a_target_within_the_noise_of_what_is_held_is_said_once(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(override(preset("shapes2d-control-factor"), ["control.target=0.01"]), "")
    run = Run.open(folder)
    line = {"target": 0.01, "tc": 0.02, "beta": 9.0, "saturated": 0.0, "kl": 5.0}
    for step in range(
        1, 13
    ):  # scatters for two lines, not at the third, then to the end: said once
        run.monitor.check({**line, "step": step, "tc_sd": 0.001 if step == 3 else 0.08})
    run.logger.close()
    assert [(event["event"], event["step"]) for event in folder.events()] == [
        ("target within noise", 6)
    ]
    assert "the total correlation scatters by 0.08 nats" in run.monitor.messages[0]
    assert len(run.monitor.messages) == 1


def test_a_critic_that_is_right_more_often_than_its_estimate_allows_is_behind(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(preset("shapes2d-control-factor"), "")
    run = Run.open(folder)
    # By the sign of their product Gaussians of correlation r are told in 1/2 + asin(r)/π, independent ones in 1/2.
    correlation, right = 0.8, 0.5 + math.asin(0.8) / (2 * math.pi)
    truth = -0.5 * math.log(1 - correlation**2)
    assert 0 < min_total_correlation(right) < truth
    line = {
        "target": 0.3,
        "tc_sd": 0.01,
        "beta": 0.0,
        "saturated": 1.0,
        "kl": 5.0,
        "kl_per_latent": [5.0],
    }
    for step, estimate in enumerate(
        [0.05] * 12 + [truth] * 12 + [0.05] * 2, start=1
    ):  # nor is it in reach again then
        run.monitor.check({**line, "step": step, "tc": estimate, "critic_accuracy": right})
        if step == 12:  # not out of reach, though the weight is at its bound: nobody knows yet
            assert "the estimate of the total correlation is too small" in " ".join(
                run_warnings(folder, is_training=True)
            )
    run.logger.close()
    events = [(event["event"], event["step"]) for event in folder.events()]
    assert events == [("critic behind", 3), ("critic up again", 13), ("target out of reach", 22)]
    assert "objective.critic_optimiser.rate" in run.monitor.messages[0]


@pytest.mark.parametrize("delayed", [False, True])
def test_the_weight_of_a_step_answers_its_own_kl_or_where_asked_the_one_before(delayed):
    # A target below the KL of an untrained network: the weight leaves zero with the first step.
    experiment = override(
        preset("shapes2d-quick"), [*TINY, "control=PI(0.05)", f"training.delayed={delayed}"]
    )
    engine = EagerEngine([experiment], load_dataset(experiment.data), torch.device("cpu"))
    rows = engine.advance(3)[:, 0]
    control = cv.Controller(cv.PI(0.05))
    answers = [control.step(kl) for kl in rows[:, 1].tolist()]
    assert min(answers) > 0.004
    assert rows[:, 3].tolist() == pytest.approx([0.0, *answers[:-1]] if delayed else answers)


def test_a_scheduled_rate_is_that_of_its_step():
    sets = ["data.images=64", "training.batch=8", "optimiser.rate=Points((1,2),(1e-2,1e-12))"]
    experiment = override(preset("shapes2d-quick"), sets)
    engine = EagerEngine([experiment], load_dataset(experiment.data), torch.device("cpu"))
    weights = [engine.snapshot(0)["model.decoder.0.weight"].clone()]
    for _ in range(2):
        engine.advance(1)
        weights.append(engine.snapshot(0)["model.decoder.0.weight"].clone())
    moved = [(after - before).abs().max().item() for before, after in pairwise(weights)]
    assert moved[0] == pytest.approx(1e-2, rel=1e-3)  # Adam's first step is its rate
    assert moved[1] < 1e-9


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_is_torchs_and_goes_on_from_a_snapshot_also_where_the_loss_leaves_a_weight_out(clip):
    def module():
        torch.manual_seed(3)
        return nn.ModuleDict(
            {"used": nn.Linear(4, 3), "left_out": nn.Linear(2, 2), "still": nn.Linear(3, 1)}
        )

    modules = [module() for _ in range(3)]
    for each in modules:
        each["still"].requires_grad_(False)
    expected, ours, resumed = modules
    torchs = torch.optim.Adam(expected.parameters(), betas=(0.8, 0.99))
    networks = [
        NetworkOptimiser(
            each, Adam(Points((1, 5), (1e-2, 1e-4)), 0.8, 0.99, clip), torch.device("cpu")
        )
        for each in (ours, resumed)
    ]
    batches = torch.randn(6, 8, 4)
    for number, x in enumerate(batches):
        loss, again, later = (
            each["still"](each["used"](x).tanh()).square().sum() for each in modules
        )
        torchs.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(expected.parameters(), clip)
        torchs.param_groups[0]["lr"] = networks[0].adam.at(number + 1.0)
        torchs.step()
        for network, value in zip(networks, (again, later), strict=True):
            network.set_rate(number)
            network.backward_and_step(value)
        if number == 2:
            kept = {name: value.clone() for name, value in networks[0].snapshot().items()}
            networks[1].backward_and_step(
                later.detach() + resumed["used"].weight.sum()
            )  # and all of it is undone
            networks[1].restore(kept)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-6, atol=1e-8)
        assert resumed.state_dict()[name].equal(ours.state_dict()[name])
