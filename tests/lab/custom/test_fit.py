"""`lab.fit`: every form of model and of data trains, and a run is a value to work with."""

import warnings

import numpy as np
import pytest
import torch
from custom_models import (
    Batches,
    ConditionalVAE,
    ConvVAE,
    DiscreteVAE,
    DistributionVAE,
    HubVAE,
    LaplaceVAE,
    PlainVAE,
    Rows,
    RowStream,
    TokenVAE,
    discs,
    groups,
)
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import controlvae as cv
from controlvae import lab

QUIET = {"progress": False, "device": "cpu"}


def fit(model, data, path, **options):
    torch.manual_seed(0)
    model = model() if isinstance(model, type) else model
    settings = {"law": cv.Auto(3.0), "steps": 40, "batch": 16, **QUIET, **options}
    if settings["batch"] is None:
        del settings["batch"]
    return lab.fit(model, data, run=path, **settings)


LABELS = torch.arange(512) % 4
MODELS = {
    "encode and decode": (PlainVAE, groups()),
    "images, batch norm, dropout, spatial code": (ConvVAE, discs()),
    "distributions": (DistributionVAE, groups()),
    "a posterior that is not Gaussian": (LaplaceVAE, groups()),
    "terms of a pair": (ConditionalVAE, (groups(), LABELS)),
    "terms of a dictionary": (DiscreteVAE, {"image": groups(), "label": LABELS}),
    "tokens": (TokenVAE, torch.randint(0, 11, (256, 6))),
}


class ForwardVAE(torch.nn.Module):
    """A module with nothing but a forward."""

    def __init__(self):
        super().__init__()
        self.inner = HubVAE()

    def forward(self, pixel_values, labels=None):
        return self.inner(pixel_values, labels)


MODELS["forward with loss and kl"] = (ForwardVAE, {"pixel_values": groups()})


@pytest.mark.parametrize("name", MODELS)
def test_every_form_of_model_trains_evaluates_and_reports(name, tmp_path):
    model, data = MODELS[name]
    run = fit(model, data, tmp_path / "run")
    assert run.step == 40
    assert run.log[-1]["step"] == 40
    assert all(np.isfinite(run.log["kl"]))
    metrics = run.evaluate(iwae=2, **{"progress": False})
    assert metrics["elbo"] == pytest.approx(-(metrics["reconstruction"] + metrics["kl"]))
    assert run.report(progress=False).read_text().count("<svg") > 0


DATA = {
    "array": (groups().numpy(), 16),
    "bytes": ((255 * groups()).byte().numpy(), 16),
    "float64": (groups().double().numpy(), 16),
    "TensorDataset": (TensorDataset(groups(), LABELS), 16),
    "tuple of arrays": ((groups().numpy(), LABELS.numpy()), 16),
    "list of examples": (list(groups()), 16),
    "map-style with transforms": (Rows(groups(), noise=0.1), 16),
    "loader": (DataLoader(Rows(groups()), batch_size=16, shuffle=True), None),
    "loader with workers": (
        DataLoader(Rows(groups()), batch_size=16, shuffle=True, num_workers=1),
        None,
    ),
    "loader with a sampler": (
        DataLoader(groups(), batch_size=16, sampler=WeightedRandomSampler([1.0] * 512, 512)),
        None,
    ),
    "iterable": (RowStream(groups()), 16),
    "iterable of batches": (Batches(groups().split(16)), 16),
}


@pytest.mark.parametrize("name", DATA)
def test_every_form_of_data_trains(name, tmp_path):
    data, batch = DATA[name]
    run = fit(PlainVAE, data, tmp_path / "run", batch=batch, likelihood="bernoulli")
    assert run.step == 40
    assert run.experiment.training.batch == 16
    assert run.evaluate(progress=False, iwae=0)["examples"] > 15


def test_pandas_frames_and_hugging_face_data_sets_train(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(groups().numpy())
    assert fit(PlainVAE, frame, tmp_path / "frame").step == 40
    datasets = pytest.importorskip("datasets")
    hub = datasets.Dataset.from_dict({"image": groups().tolist(), "label": LABELS.tolist()})
    assert fit(PlainVAE, hub, tmp_path / "hub").step == 40
    stream = hub.with_format("torch").to_iterable_dataset()
    assert fit(PlainVAE, stream, tmp_path / "stream").step == 40


def test_a_folder_of_images_trains(tmp_path):
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(discs(40)):
        Image.fromarray((255 * image[0]).byte().numpy()).save(folder / f"{number}.png")
    run = fit(ConvVAE, str(folder), tmp_path / "run", likelihood="bernoulli")
    assert run.step == 40
    assert run.examples.holds_images


class SmallLogits(PlainVAE):
    """A model whose logits all lie in [0, 1] before training."""

    def decode(self, z):
        return 0.5 + 0.01 * self.decoder_net[2](z.repeat(1, 8))


@pytest.mark.parametrize(
    ("model", "data", "output"),
    [(SmallLogits, groups(), "logits"), (ConvVAE, discs(), "probabilities")],
)
def test_small_logits_are_not_taken_for_probabilities(model, data, output, tmp_path):
    run = fit(model, data, tmp_path / "run", steps=2, likelihood="bernoulli")
    assert run.experiment.model.output == output


def test_the_kl_reaches_its_target(tmp_path):
    run = fit(PlainVAE, groups(), tmp_path / "run", steps=1500, batch=64)
    assert np.mean(run.log["kl"][-20:]) == pytest.approx(3.0, rel=0.03)


def test_a_run_is_a_value_to_work_with(tmp_path):
    run = fit(ConvVAE, discs(), tmp_path / "run", validation=0.25, ema_weights=0.9, steps=60)
    assert isinstance(run.model, ConvVAE)
    assert not run.model.training
    assert run.sample(3).shape == (3, 1, 16, 16)
    assert run.reconstruct(discs(5)).shape == (5, 1, 16, 16)
    assert run.best.step <= 60
    assert run.plot().axes
    assert run.traverse().axes
    assert "kl" in run.log.columns
    assert run.log["step"][-1] == 60
    assert "<table" in run._repr_html_()
    pytest.importorskip("pandas")
    assert run.log.to_pandas().index[-1] == 60


def new_model():
    return PlainVAE()


def test_a_class_makes_a_model_for_each_seed(tmp_path):
    runs = fit(new_model, groups(), tmp_path / "runs", seeds=3)
    assert [run.experiment.training.seed for run in runs] == [1, 2, 3]
    weights = [run.model.encoder_net[0].weight for run in runs]
    assert not torch.equal(weights[0], weights[1])
    alone = fit(new_model, groups(), tmp_path / "alone", seed=2)
    assert alone.log == runs[1].log


def test_a_module_is_trained_in_place_and_seeds_get_copies(tmp_path):
    model = PlainVAE()
    before = model.encoder_net[0].weight.detach().clone()
    run = fit(model, groups(), tmp_path / "run")
    assert not torch.equal(before, model.encoder_net[0].weight)
    assert torch.equal(run.model.encoder_net[0].weight, model.encoder_net[0].weight)
    after = model.encoder_net[0].weight.detach().clone()
    fit(model, groups(), tmp_path / "seeds", seeds=2)
    assert torch.equal(after, model.encoder_net[0].weight)


@pytest.mark.parametrize(
    "options",
    [
        {"optimiser": torch.optim.AdamW, "learning_rate": 2e-3},
        {"optimiser": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), "clip": 1.0},
        {"scheduler": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40)},
        {"optimiser": torch.optim.RMSprop, "ema_weights": 0.9, "delayed": True},
    ],
    ids=["class", "function", "scheduler", "average"],
)
def test_optimisers_schedulers_and_averages(options, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fit(PlainVAE, groups(), tmp_path / "run", **options)
    assert run.step == 40


def test_the_library_s_adam_equals_torch_s(tmp_path):
    ours = fit(PlainVAE, groups(), tmp_path / "ours")
    theirs = fit(PlainVAE, groups(), tmp_path / "theirs", optimiser=torch.optim.Adam)
    assert ours.log["kl"] == pytest.approx(theirs.log["kl"], rel=1e-6)


def test_callbacks_receive_progress(tmp_path):
    seen = []
    fit(PlainVAE, groups(), tmp_path / "run", callbacks=[lambda p: seen.append(p.step)])
    alone = []
    fit(PlainVAE, groups(), tmp_path / "alone", callbacks=lambda p: alone.append(p.step))
    assert alone[-1] == 40
    assert seen[-1] == 40


def test_training_leaves_the_user_s_generators_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = PlainVAE
    lab.fit(model, groups(), law=cv.Auto(3.0), steps=20, batch=16, run=tmp_path / "run", **QUIET)
    assert torch.equal(torch.rand(3), expected)


def test_it_equals_a_plain_loop(tmp_path):
    """The lab's run is the loop of the README, with the lab's batches and noise."""
    from controlvae.lab.data.batch_order import BatchOrder
    from controlvae.lab.engines.rng import noise_key, normal_noise

    torch.manual_seed(3)
    model, data = PlainVAE().double(), groups().double()
    plain = PlainVAE().double()
    plain.load_state_dict(model.state_dict())
    run = lab.fit(
        model, data, law=cv.PI(3.0, ki=1e-2), steps=30, batch=16, run=tmp_path / "run", **QUIET
    )
    control = cv.Controller(cv.PI(3.0, ki=1e-2))
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-3)
    order, key = BatchOrder(512, 16, 1), torch.tensor(noise_key(1))
    for step in range(30):
        x = data[order.indices(step)]
        mean, log_variance = plain.encode(x)
        noise = normal_noise(key, torch.tensor(step), (16, 4)).double()
        logits = plain.decode(mean + torch.exp(log_variance / 2) * noise)
        recon = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        kl = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2 / 16
        loss = recon / 16 + control.step(kl.item()) * kl
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for ours, theirs in zip(run.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
