"""Resuming under frameworks: within an epoch of Lightning, and from damaged state files."""

import json
import os

import pytest
import torch

import controlvae as cv
from controlvae.errors import UserError
from controlvae.integrations._files import read_state, write_state


def fit(steps, loader, checkpoint=None, save=None, accumulate=1):
    """Train a small VAE whose noise is a function of the step. Return its weights and weight."""
    lightning = pytest.importorskip("lightning.pytorch")
    from controlvae.integrations.lightning import KLControl

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.decoder = torch.nn.Linear(8, 4), torch.nn.Linear(2, 8)
            self.beta, self.trace = 0.0, []

        def training_step(self, x, index):
            mean, log_variance = self.encoder(x).chunk(2, 1)
            generator = torch.Generator().manual_seed(self.global_step)
            noise = torch.randn(mean.shape, generator=generator)
            z = mean + torch.exp(log_variance / 2) * noise
            kl = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1).mean()
            self.log("kl", kl)
            self.trace.append((float(self.beta), float(x.sum())))
            return (self.decoder(z) - x).square().sum(1).mean() + self.beta * kl

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    module, control = Module(), KLControl(cv.Auto(1.0))
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        callbacks=[control],
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    if save is not None:
        trainer.save_checkpoint(save)
    return module, control


@pytest.mark.parametrize(("stop", "accumulate"), [(3, 1), (7, 1), (9, 1), (5, 2)])
def test_lightning_resumes_within_an_epoch_as_if_never_stopped(tmp_path, stop, accumulate):
    pytest.importorskip("lightning.pytorch")
    from controlvae.integrations.lightning import SeededLoader

    data = torch.randn(35, 8, generator=torch.Generator().manual_seed(1))
    saved = tmp_path / "stopped.ckpt"
    whole, control = fit(12, SeededLoader(data, 5, seed=3), accumulate=accumulate)
    first, _ = fit(stop, SeededLoader(data, 5, seed=3), save=saved, accumulate=accumulate)
    resumed, after = fit(12, SeededLoader(data, 5, seed=3), checkpoint=saved, accumulate=accumulate)
    assert first.trace + resumed.trace == whole.trace
    for name, value in whole.state_dict().items():
        assert resumed.state_dict()[name].equal(value)
    assert after.state_dict() == control.state_dict()


def test_seeded_loader_gives_every_example_once_per_epoch_in_a_new_order():
    pytest.importorskip("lightning.pytorch")
    from controlvae.integrations.lightning import SeededLoader

    loader = SeededLoader(torch.arange(10.0), 4, seed=1)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert len(loader) == 3
    assert [len(batch) for batch in SeededLoader(torch.arange(10.0), 4, drop_last=True)] == [4, 4]


def test_lightning_refuses_a_checkpoint_with_a_damaged_state(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from controlvae.integrations.lightning import SeededLoader

    data = torch.randn(10, 8)
    fit(2, SeededLoader(data, 5), save=tmp_path / "stopped.ckpt")
    content = torch.load(tmp_path / "stopped.ckpt", weights_only=False)
    (key,) = [name for name in content["callbacks"] if "KLControl" in name]
    content["callbacks"][key]["integral"] = float("nan")
    torch.save(content, tmp_path / "damaged.ckpt")
    with pytest.raises(ValueError, match="'integral' must be finite"):
        fit(4, SeededLoader(data, 5), checkpoint=tmp_path / "damaged.ckpt")


DAMAGE = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "nested": lambda text: "[" * 100_000,
    "a list": lambda text: "[1, 2]",
    "not finite": lambda text: text.replace('"integral": ', '"integral": NaN, "x": '),
    "huge": lambda text: text.replace('"beta": ', '"beta": 1' + "0" * 400 + ', "x": '),
    "wrong type": lambda text: json.dumps({**json.loads(text), "beta": "high"}),
    "too long": lambda text: text + " " * (1 << 21),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_state_files_are_named(tmp_path, damage):
    control, path = cv.Controller(cv.PI(18.0)), tmp_path / "kl_control.json"
    control.step(20.0)
    write_state(path, control)
    path.write_text(DAMAGE[damage](path.read_text()))
    other = cv.Controller(cv.PI(18.0))
    before = other.state_dict()
    with pytest.raises(UserError, match=r"kl_control\.json"):
        read_state(path, other)
    assert other.state_dict() == before


def test_state_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    control, path = cv.Controller(cv.PI(18.0)), tmp_path / "kl_control.json"
    control.step(20.0)
    write_state(path, control)
    whole = path.read_bytes()
    control.step(30.0)

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_state(path, control)
    assert path.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
