"""Wrong input to `lab.fit`: one line that names what was expected, and no run folder."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from custom_models import Faulty, PlainVAE, Rows, RowStream, groups
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import controlvae as cv
from controlvae import lab
from controlvae.errors import RunError, UserError

SETTINGS = {"law": cv.Auto(3.0), "steps": 20, "batch": 16, "log_every": 5}
QUIET = {"progress": False, "device": "cpu"}
X = groups(128)
BROKEN = X.clone()
BROKEN[9, 3] = float("nan")


def fit(model, data, run, **options):
    settings = {**SETTINGS, **QUIET, "run": run, **options}
    if settings["batch"] is None:
        del settings["batch"]
    return lab.fit(model, data, **settings)


def refused(tmp_path, model=PlainVAE, data=X, **options):
    """Return the one line that answers wrong input, after checking that nothing was written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        fit(model, data, **{"run": tmp_path / "run", **options})
    assert sorted(tmp_path.rglob("*")) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def encodes(function):
    """Return a model class whose `encode` returns a function of the encoder's output."""
    return type("Model", (PlainVAE,), {"encode": lambda self, x: function(self.encoder_net(x))})


def decodes(function):
    """Return a model class whose `decode` returns a function of the logits."""
    return type("Model", (PlainVAE,), {"decode": lambda self, z: function(self.decoder_net(z))})


def returns(function):
    """Return a model class whose `terms` returns a function of its losses."""

    def terms(self, batch, noise):
        mean, log_variance = self.encode(batch)
        logits = self.decode(mean + torch.exp(0.5 * log_variance) * noise.like(mean))
        loss = F.binary_cross_entropy_with_logits(logits, batch, reduction="none").sum(1)
        return function(loss, 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance))

    return type("Model", (PlainVAE,), {"terms": terms})


def on_meta_device():
    with torch.device("meta"):
        return PlainVAE()


class Failing(PlainVAE):
    def __init__(self):
        raise OSError("no weights\nhere")


class WithoutParameters(nn.Module):
    def encode(self, x):
        return x[:, :4], x[:, :4]

    def decode(self, z):
        return z.repeat(1, 8)


MODELS = {
    "decode of other width": (decodes(lambda y: y[:, :30]), r"\(8, 32\), got \(8, 30\)"),
    "decode of other length": (decodes(lambda y: y[:3]), r"\(8, 32\), got \(3, 32\)"),
    "decode of one row": (decodes(lambda y: y.sum(0, keepdim=True)), r"got \(1, 32\)"),
    "decode of nothing": (decodes(lambda y: None), "decode.* tensor or a distribution, got None"),
    "encode of one": (encodes(lambda y: y), r"\(mean, log_variance\).*got a float32 tensor"),
    "encode of three": (encodes(lambda y: (y, y, y)), r"\(mean, log_variance\).*return two"),
    "encode of two shapes": (encodes(lambda y: y.split([3, 5], 1)), r"\(8, 3\) and \(8, 5\)"),
    "encode of few rows": (encodes(lambda y: y[:2].chunk(2, 1)), "one row per example"),
    "encode of NaN": (encodes(lambda y: (y / 0).chunk(2, 1)), "NaN or infinity in the mean"),
    "NaN": (
        returns(lambda r, k: (r * float("nan"), k)),
        "reconstruction of the first batch is nan",
    ),
    "infinity": (returns(lambda r, k: (r, k * float("inf"))), "kl of the first batch is inf"),
    "KL summed": (returns(lambda r, k: (r, k.sum())), "kl is summed over the batch.*or their mean"),
    "KL summed to one": (returns(lambda r, k: (r, k.sum().view(1))), "kl is summed over"),
    "loss summed": (returns(lambda r, k: (r.sum(), k)), "reconstruction is summed over"),
    "KL detached": (
        returns(lambda r, k: (r, k.detach())),
        "kl has no gradient; compute it without",
    ),
    "loss detached": (returns(lambda r, k: (r.detach(), k)), "reconstruction has no gradient"),
    "no_grad": (encodes(torch.no_grad()(lambda y: y.detach().chunk(2, 1))), "kl has no gradient"),
    "frozen": (PlainVAE().requires_grad_(False), r"no parameter to train.*requires_grad_\(True\)"),
    "no parameters": (WithoutParameters(), "no parameter to train: it has none at all"),
    "KL of few": (returns(lambda r, k: (r, k[:3])), r"kl must have one value per example, \(8,\)"),
    "loss of few": (returns(lambda r, k: (r[:-1], k)), r"reconstruction must have.*got \(7,\)"),
    "KL transposed": (returns(lambda r, k: (r, k.t())), r"got \(4, 8\); do not slice or transpose"),
    "loss per value": (returns(lambda r, k: (r[:, None] + r, k)), "sum it over all axes but"),
    "four terms": (returns(lambda r, k: (r, k, r, r)), "at most one further loss"),
    "numbers": (returns(lambda r, k: (1.0, 2.0)), "must return reconstruction and kl"),
    "text as a loss": (returns(lambda r, k: (r, k, "x")), "further loss and must be a tensor"),
    "meta device": (on_meta_device(), "meta device and has no values; create it on a real device"),
    "meta device, function": (on_meta_device, "meta device and has no values"),
    "half": (PlainVAE().half(), r"weights in float16.*pass model.float\(\)"),
    "bfloat16": (PlainVAE().bfloat16(), r"weights in bfloat16.*pass model.float\(\)"),
    "DataParallel": (nn.DataParallel(PlainVAE()), "pass the module inside it, model.module"),
    "class with arguments": (nn.Linear, "must work without arguments.*pass an instance"),
    "class that raises": (Failing, r"Failing failed: OSError: no weights \(test_bad_input.py line"),
    "function of nothing": (lambda: None, "must return a module, got None"),
    "text": ("vae", "must be a torch.nn.Module, or a class or function.*got 'vae'"),
    "other size": (PlainVAE(size=16), "fits the shape of the data"),
    "other kind": (nn.Linear(32, 32), r"cannot be trained as it is.*give it encode\(x\)"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_trained(name, tmp_path):
    model, line = MODELS[name]
    assert re.search(line, refused(tmp_path, model))


class Lazy(PlainVAE):
    def __init__(self):
        super().__init__()
        self.encoder_net = nn.Sequential(nn.LazyLinear(32), nn.Tanh(), nn.LazyLinear(8))


class Tied(PlainVAE):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def decode(self, z):
        return super().decode(self.second(self.first(z)))


WORKING = {
    "lazy layers": Lazy,
    "lazy layers of an instance": Lazy(),
    "float64": PlainVAE().double(),
    "torch.compile": torch.compile(PlainVAE()),
    "tied weights": Tied(),
    "class": PlainVAE,
    "means": returns(lambda r, k: (r.mean(), k.sum(1).mean())),
    "per example": returns(lambda r, k: (r, k.sum(1))),
}


@pytest.mark.parametrize("name", WORKING)
def test_unusual_models_that_train(name, tmp_path):
    run = fit(WORKING[name], X, tmp_path / "run")
    assert run.step == 20
    if name == "tied weights":
        assert run.model.first.weight is run.model.second.weight


class Texts(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return "text"


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


DATA = {
    "length 0": (X[:0], "no examples"),
    "list of length 0": ([], "no examples"),
    "TensorDataset of length 0": (TensorDataset(X[:0]), "no examples"),
    "Dataset of length 0": (Rows(X[:0]), "no examples"),
    "length 1": (X[:1], "a batch has 16 examples, but there is only 1.*make the batch 1 or"),
    "less than a batch": (X[:10], "there are only 10 examples.*make the batch 10 or smaller"),
    "ragged": ([torch.rand(3 + n % 2) for n in range(40)], r"index 0 is .*\(3,\) and index 1 is"),
    "ragged at the end": ([*X[:40], X[0, :31]], r"one shape.*index 40 is .*\(31,\); crop or pad"),
    "ragged array": (np.array([np.zeros(3), np.zeros(4)], object), "must be numeric.*of object"),
    "texts": (Texts(), "encode.* takes a tensor.*gives 'text'; encode text as token ids"),
    "list of texts": (["a", "b"] * 20, "encode.* takes a tensor.*gives 'a'"),
    "array of texts": (np.array(["a", "b"] * 20), "must be numeric.*encode text as token ids"),
    "objects": (np.array([{}, {}] * 20), "must be numeric, got an array of object"),
    "number": (3, "dataset must be arrays, tensors.*got 3"),
    "nothing": (None, "needs its data too: pass dataset="),
    "one value": (torch.tensor(3.0), "needs a first axis over examples"),
    "two lengths": ((X, torch.zeros(5)), r"data\[0\] has 128, data\[1\] has 5"),
    "NaN": (BROKEN, r"data\[9\] contains NaN or infinity; fill or drop"),
    "NaN in a Dataset": (list(BROKEN[:20]), "index 9 contains NaN or infinity; fill or drop"),
    "NaN in a stream": (RowStream(BROKEN), r"batch 1 of epoch 1 contains NaN.*at \[9\]"),
    "integers": (X.long(), r"the data is int64.*pass floats, e.g. data.float\(\)"),
    "booleans": (X.bool(), "the data is bool.*pass floats"),
    "empty stream": (Empty(), "ended before its first batch of 16.*a smaller batch"),
    "stream of less than a batch": (RowStream(X[:7]), "ended before its first batch of 16"),
    "empty generator": ((x for x in ()), "ended before its first batch"),
    "unreadable example": (
        Faulty(bad=7),
        r"index 7 failed with OSError: 7.png is broken \(custom_mod",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_trained_on(name, tmp_path):
    data, line = DATA[name]
    assert re.search(line, refused(tmp_path, data=data))


def test_a_loader_without_batches_is_named(tmp_path):
    line = refused(tmp_path, data=DataLoader(X, batch_size=None), batch=None)
    assert "batch_size=None, so its data set must return whole batches" in line
    whole = DataLoader(X.view(8, 16, 32), batch_size=None)
    assert fit(PlainVAE, whole, tmp_path / "run", batch=None).step == 20


def test_a_loader_of_too_large_batches_is_named(tmp_path):
    line = refused(tmp_path, data=DataLoader(X[:10], batch_size=16), batch=None)
    assert "there are only 10 examples" in line


@pytest.mark.parametrize(
    "data",
    [3 * X, torch.cat([X, 3 * X]), list(torch.cat([X, 3 * X])), (2 * X).long()],
    ids=["all", "at the end", "at the end of a Dataset", "integers"],
)
def test_a_bernoulli_likelihood_needs_data_in_0_to_1(data, tmp_path):
    class Casting(PlainVAE):
        def encode(self, x):
            return super().encode(x.float())

    line = refused(tmp_path, Casting, data, likelihood="bernoulli")
    assert re.search(r"needs data in \[0, 1\], got values from 0 to [23]; rescale", line)


@pytest.mark.parametrize("data", [Rows(X), X], ids=["Dataset", "arrays"])
def test_integers_train_if_the_model_casts_them(data, tmp_path):
    class Casting(PlainVAE):
        def encode(self, x):
            return super().encode(x.float())

    if isinstance(data, torch.Tensor):
        data = data.long()
    assert fit(Casting, data, tmp_path / "run", likelihood="bernoulli").step == 20


def test_a_generator_is_read_only_once(tmp_path):
    run = fit(PlainVAE, (x for x in X.repeat(4, 1).split(16)), tmp_path / "run")
    assert run.step == 20
    assert run.evaluate(progress=False, iwae=0)["examples"] == 16
    with pytest.raises(
        RunError, match=r"ended before step 9: generator.* pass a Dataset"
    ) as caught:
        fit(PlainVAE, (x for x in X.split(16)), tmp_path / "short")
    assert "\n" not in str(caught.value)


ADAM = torch.optim.Adam
OTHER_PARAMETERS = PlainVAE().parameters()
OPTIONS = {
    "steps of 0": ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
    "negative steps": ({"steps": -1}, "steps must be a whole number of at least 1, got -1"),
    "broken steps": ({"steps": 1.5}, "steps must be a whole number of at least 1, got 1.5"),
    "steps as text": ({"steps": "many"}, "steps must be a whole number.*got 'many'"),
    "steps as truth": ({"steps": True}, "steps must be a whole number.*got True"),
    "batch of 0": ({"batch": 0}, "batch must be a whole number of at least 1, got 0"),
    "batch as text": ({"batch": "16"}, "batch must be a whole number of at least 1, got '16'"),
    "no law": ({"law": None}, r"law must be a law object, got None; pass e.g. law=cv.Auto\("),
    "law by name": ({"law": "Auto"}, r"law must be.*got 'Auto'; pass e.g. law=cv.Auto\("),
    "law as a number": ({"law": 18.0}, r"law must be.*got 18.0; pass e.g. law=cv.Auto\(18\)"),
    "law as a class": ({"law": cv.Auto}, "law must be a law object, got <class"),
    "no seeds": ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0"),
    "seed as text": ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
    "likelihood": ({"likelihood": "poisson"}, "likelihood must be bernoulli.*got 'poisson'"),
    "likelihood of a text model": ({"likelihood": "tokens"}, "categorical .class numbers and tok"),
    "likelihood of all": (
        {"likelihood": lambda y, x: (y - x).square().sum()},
        r"one loss per example, \(8,\), got a float32 tensor \(\); sum over all axes but",
    ),
    "precision": ({"precision": "fp8"}, "precision must be fp32, tf32 or bf16, got 'fp8'"),
    "device": ({"device": "tpu"}, "device 'tpu' is not available.*trained on cpu or cuda"),
    "device as a number": ({"device": 3}, "device must be auto, cpu, cuda or cuda:1, got 3"),
    "meta device": ({"device": torch.device("meta")}, "device 'meta' is not available"),
    "run as a number": ({"run": 3}, "run must be the path of a new folder, got 3"),
    "optimiser object": ({"optimiser": ADAM(PlainVAE().parameters())}, "got the object Adam"),
    "optimiser by name": ({"optimiser": "adam"}, "torch.optim class.*got 'adam'; pass torch.opt"),
    "optimiser of others": (
        {"optimiser": lambda parameters: ADAM(OTHER_PARAMETERS)},
        "trains parameters that are not in the model; build it from",
    ),
    "optimiser that raises": ({"optimiser": lambda p: {}["x"]}, "failed: KeyError.*a function"),
    "optimiser with closures": ({"optimiser": torch.optim.LBFGS}, "loss several times in a step"),
    "plateau": ({"scheduler": lr_scheduler.ReduceLROnPlateau}, "ReduceLROnPlateau; use e.g. Cos"),
    "scheduler object": (
        {"scheduler": lr_scheduler.ConstantLR(ADAM(PlainVAE().parameters()))},
        r"got the object ConstantLR\(...\); pass lambda optimiser: ConstantLR\(optimiser",
    ),
    "scheduler class": ({"scheduler": lr_scheduler.StepLR}, "failed: TypeError.*pass a function"),
    "clip": ({"clip": -1}, "clip must be positive and finite, got -1"),
    "clip as text": ({"clip": "x"}, "clip must be a positive number or None, got 'x'"),
    "rate": ({"learning_rate": -1}, "learning_rate must be positive and finite, got -1"),
    "validation as text": ({"validation": "all"}, "a data set, got 'all'; try validation=0.1"),
    "validation of 1.5": ({"validation": 1.5}, "validation must be a number of examples.*got 1.5"),
    "validation of all": ({"validation": 128}, "must leave examples to train on, got 128 of 128"),
    "validation of most": ({"validation": 120}, "there are only 8 examples to train on"),
    "other validation data": ({"validation": X[:, :7]}, "validation data does not fit the model"),
    "average": ({"ema_weights": 2}, r"ema_weights must lie in \[0, 1\), got 2"),
    "workers": ({"workers": -1}, "workers must be a whole number of at least 0, got -1"),
    "log_every": ({"log_every": 1.5}, "log_every must be a whole number of at least 1, got 1.5"),
    "callback": ({"callbacks": 3}, r"or a list of them.*write callbacks=\[function\]"),
    "number as a callback": ({"callbacks": [3]}, r"or a list of them.*got \[3\]"),
    "logger": ({"logger": "tensorbored"}, "no logger 'tensorbored'; did you mean 'tensorboard'?"),
    "time limit": ({"time_limit": "soon"}, "takes a duration such as 90s, 9m or 1.5h, got 'soon'"),
    "negative time limit": ({"time_limit": -1}, "takes a duration such as.*got -1"),
    "name of another library": ({"lr": 1e-3}, "no argument 'lr'; it is called 'learning_rate'"),
    "misspelt name": ({"likelyhood": "own"}, "no argument 'likelyhood'; did you mean 'likelihood'"),
    "inputs": ({"inputs": "pixels"}, "inputs='pixels' is not in a batch, which is a float32"),
    "inputs that fail": ({"inputs": lambda b: b[999]}, "inputs failed with IndexError"),
    "factors": ({"factors": [1, 2]}, r"one row per example.*\(128, factors\), got \(2,\)"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_not_possible(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, line = OPTIONS[name]
    assert re.search(line, refused(tmp_path, **options))


def test_a_default_run_folder_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="loss several times"):
        fit(PlainVAE, X, None, optimiser=torch.optim.LBFGS)
    assert not list(tmp_path.glob("runs/*"))


def test_a_stream_cannot_be_split(tmp_path):
    line = refused(tmp_path, data=RowStream(X), validation=0.1)
    assert "a stream cannot be split; pass validation=DATA" in line


def test_run_folders_that_are_taken(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    assert "full is not empty; choose another" in refused(tmp_path, run=tmp_path / "full")
    assert "file is a file; choose another" in refused(tmp_path, run=tmp_path / "file")
    assert "cannot create" in refused(tmp_path, run=tmp_path / "file" / "run")


def test_whole_floats_are_steps(tmp_path):
    assert fit(PlainVAE, X, tmp_path / "run", steps=2e1, batch=np.int64(16)).step == 20


@pytest.mark.parametrize("where", ["data", "validation"])
def test_data_nested_a_thousand_deep_is_refused_in_one_line(tmp_path, where):
    nested = 0.0
    for _ in range(1_000):
        nested = {"a": nested}
    assert "'a': ..." in refused(tmp_path, **{where: nested})
