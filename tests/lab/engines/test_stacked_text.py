"""Stacked text engine against the eager engine, which trains the same models one by one."""

import os
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated

import pytest
import torch
from torch import nn

from controlvae.lab.config import override, preset
from controlvae.lab.data.bucketing import BucketOrder
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.select import _make_text_stack
from controlvae.lab.engines.stacked_text import cells, verify
from controlvae.lab.engines.stacked_text.engine import StackedTextEngine
from controlvae.lab.engines.stacked_text.recurrence import StackableGRU, StackableLSTM
from controlvae.laws import PI, Constant

CPU = torch.device("cpu")
STEPS = 8
COMMON = ["training.widths=shared", "training.batch=6", "control=PI(3.0,ki=0.01)"]
TEXT = [*COMMON, "model.width=16", "model.inner=24", "model.heads=2", "model.latents=4"]
DIALOG = [
    *COMMON,
    "model.embedding=8",
    "model.utterance=6",
    "model.context=10",
    "model.hidden=12",
    "model.labels=4",
    "model.latents=5",
]
CASES = {
    "lstm and transformer": ("text-quick", [*TEXT, "training.delayed=true"]),
    "two lstms": ("text-quick", [*TEXT, "model.decoder=lstm", "optimiser.clip=0.5"]),
    "two transformers": ("text-quick", [*TEXT, "model.encoder=transformer"]),
    "no dropout": (
        "text-quick",
        [*TEXT, "model.dropout=0", "optimiser.rate=Linear(1e-3,1e-2,steps=9)"],
    ),
    "free bits": ("text-quick", [*TEXT, "control=Constant(1.0)", "objective.free_bits=0.1"]),
    "KL weights": ("text-quick", [*TEXT, "objective.kl_weights=(1,Points((1,8),(3,2)))"]),
    "dialogs": ("dialog-quick", DIALOG),
    "dialogs without acts": ("dialog-quick", [*DIALOG, "model.acts=false"]),
}


def make_experiments(name, overrides, models=3):
    """Return experiments that differ in seed and, for the second one, in law."""
    first = override(preset(name), overrides)
    experiments = [
        replace(first, training=replace(first.training, seed=seed)) for seed in range(models)
    ]
    if models > 1:
        experiments[1] = replace(experiments[1], control=Constant(0.5))
    return experiments


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)


@pytest.fixture(params=CASES.values(), ids=CASES)
def engines(request):
    """A stacked engine, an eager one, and their experiments."""
    experiments = make_experiments(*request.param)
    examples = load_dataset(experiments[0].data)
    return (
        StackedTextEngine(experiments, examples, CPU),
        EagerEngine(experiments, examples, CPU),
        experiments,
    )


def test_training_equals_the_eager_engine(engines):
    stacked, eager, experiments = engines
    rows, expected = stacked.advance(STEPS), eager.advance(STEPS)
    saturated = row_columns(experiments[0]).index("saturated")
    assert_near(rows[..., :saturated], expected[..., :saturated])
    assert_near(rows[..., saturated + 1 :], expected[..., saturated + 1 :])
    for model in range(len(experiments)):
        snapshot, reference = stacked.snapshot(model), eager.snapshot(model)
        assert snapshot.keys() == reference.keys()
        for name, value in reference.items():
            # Adam divides tiny gradients by their size, which enlarges rounding.
            torch.testing.assert_close(
                snapshot[name].double(), value.double(), rtol=1e-2, atol=2e-3, msg=name
            )


@pytest.mark.parametrize("case", ["lstm and transformer", "dialogs"])
def test_runs_resume_on_the_other_engine(case):
    experiments = make_experiments(*CASES[case])
    examples = load_dataset(experiments[0].data)
    unbroken = StackedTextEngine(experiments, examples, CPU)
    unbroken.advance(STEPS // 2)
    snapshots = [unbroken.snapshot(model) for model in range(len(experiments))]
    expected = unbroken.advance(STEPS // 2)
    for engine_class in (EagerEngine, StackedTextEngine):
        resumed = engine_class(experiments, examples, CPU)
        for model, snapshot in enumerate(snapshots):
            resumed.restore(model, STEPS // 2, snapshot)
        assert_near(resumed.advance(STEPS // 2)[..., :4], expected[..., :4])


def test_a_target_moves_for_one_model():
    experiments = make_experiments("text-quick", TEXT)
    engine = StackedTextEngine(experiments, load_dataset(experiments[0].data), CPU)
    engine.advance(1)
    engine.set_target(0, 7.0)
    target = row_columns(experiments[0]).index("target")
    assert engine.advance(1)[0, :, target].tolist()[::2] == [7.0, 3.0]


@pytest.mark.parametrize("case", ["lstm and transformer", "dialogs"])
def test_a_stack_is_used_only_if_its_numbers_are_right(case, monkeypatch):
    experiments, notes = make_experiments(*CASES[case]), []
    examples = load_dataset(experiments[0].data)
    stack = _make_text_stack(experiments, examples, CPU, notes.append)
    assert isinstance(stack, StackedTextEngine)
    assert notes == []

    advance = StackedTextEngine.advance
    monkeypatch.setattr(StackedTextEngine, "advance", lambda *args: advance(*args) * 1.05)
    assert _make_text_stack(experiments, examples, CPU, notes.append) is None
    assert "differs by" in notes.pop()

    def fail(*args):
        raise NotImplementedError("no such kernel\nat line 3")

    monkeypatch.setattr(verify.StackedTextEngine, "advance", fail)
    assert _make_text_stack(experiments, examples, CPU, notes.append) is None
    assert notes == [
        "these models are trained one by one, not as a stack: NotImplementedError: no such kernel"
    ]


def test_own_widths_are_refused():
    experiments = make_experiments("text-quick", [*TEXT, "training.widths=own"])
    with pytest.raises(ValueError, match="widths=shared"):
        StackedTextEngine(experiments, load_dataset(experiments[0].data), CPU)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("with_state", [False, True])
def test_recurrent_layers_equal_torch(kind, bias, with_state):
    if kind is nn.GRU and not bias:
        with pytest.raises(TypeError, match="biases"):
            StackableGRU(nn.GRU(3, 4, bias=False, batch_first=True))
        return
    torch.manual_seed(0)
    layer = kind(3, 5, bias=bias, batch_first=True).double()
    stackable = (StackableLSTM if kind is nn.LSTM else StackableGRU)(layer)
    x = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    state = None
    if with_state:
        state = torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True)
        state = (state, state * 2) if kind is nn.LSTM else state
    weight = torch.randn(4, 7, 5, dtype=torch.float64)
    gradients = []
    for each in (layer, stackable):
        outputs, last = each(x, state)
        cell = last[1] if kind is nn.LSTM else last
        inputs = [x, *layer.parameters()]
        loss = (outputs * weight).sum() + (cell**2).sum()
        gradients.append([outputs, *torch.autograd.grad(loss, inputs)])
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected)


def test_cells_have_the_right_gradient():
    torch.manual_seed(0)
    draw = lambda width: torch.randn(6, width, dtype=torch.float64, requires_grad=True)  # noqa: E731
    products, hidden, cell, d_hidden, d_cell = draw(20), draw(20), draw(5), draw(5), draw(5)
    step = cells.lstm_step(products, hidden, cell)
    expected = torch.autograd.grad((step.hidden, step.cell), (products, cell), (d_hidden, d_cell))
    actual = cells.lstm_step_gradient(step.activations, cell, step.cell, d_hidden, d_cell)
    torch.testing.assert_close(actual, expected)
    products, from_hidden, hidden = draw(15), draw(15), draw(5)
    step = cells.gru_step(products, from_hidden, hidden)
    expected = torch.autograd.grad(step.hidden, (products, from_hidden, hidden), d_hidden)
    torch.testing.assert_close(
        cells.gru_step_gradient(step.activations, hidden, d_hidden), expected
    )


def test_kernels_equal_the_formulas():
    pytest.importorskip("triton")
    from controlvae.lab.engines.stacked_text import launch

    torch.manual_seed(0)
    draw = lambda width: 3 * torch.randn(2, 7, width)  # noqa: E731
    products, hidden, cell, d_hidden, d_cell = draw(20), draw(20), draw(5), draw(5), draw(5)
    step = cells.lstm_step(products, hidden, cell)
    torch.testing.assert_close(launch.lstm_step(products, hidden, cell), tuple(step))
    state = (step.activations, cell, step.cell, d_hidden, d_cell)
    torch.testing.assert_close(launch.lstm_gradient(*state), cells.lstm_step_gradient(*state))
    products, from_hidden, hidden = draw(15), draw(15), draw(5)
    gru = cells.gru_step(products, from_hidden, hidden)
    torch.testing.assert_close(launch.gru_step(products, from_hidden, hidden), tuple(gru))
    gradient = cells.gru_step_gradient(gru.activations, hidden, d_hidden)
    torch.testing.assert_close(launch.gru_gradient(gru.activations, hidden, d_hidden), gradient)


@pytest.mark.parametrize("parts", [1, 2])
def test_seeds_share_widths_but_not_sentences(parts):
    lengths = torch.randint(1, 60, (103, parts)).squeeze(1)
    orders = [BucketOrder(lengths, 8, seed, shared_widths=True) for seed in (1, 2)]
    steps = 3 * orders[0].steps_per_epoch
    assert [orders[0].width(t) for t in range(steps)] == [orders[1].width(t) for t in range(steps)]
    assert any(not orders[0].indices(t).equal(orders[1].indices(t)) for t in range(steps))
    for order in orders:
        for epoch in range(3):
            assert order.permutation(epoch).sort().values.equal(torch.arange(103))
            first = order.permutation(epoch)[: order.steps_per_epoch * 8]
            assert len(set(first.tolist())) == order.steps_per_epoch * 8


def test_the_law_of_a_stack_follows_its_own_model():
    experiments = [
        replace(each, control=PI(target, ki=0.05))
        for each, target in zip(make_experiments("text-quick", TEXT), (1.0, 3.0, 6.0), strict=True)
    ]
    engine = StackedTextEngine(experiments, load_dataset(experiments[0].data), CPU)
    rows = engine.advance(STEPS)
    target = row_columns(experiments[0]).index("target")
    assert rows[-1, :, target].tolist() == [1.0, 3.0, 6.0]
