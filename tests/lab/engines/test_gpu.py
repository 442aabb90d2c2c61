"""The engines for a GPU on a real one, against the plain engine on the host. By itself: `pytest tests/lab/engines/test_gpu.py`."""

import copy
import math
import os
from dataclasses import dataclass

import pytest
import torch
from small import OBJECTIVES, STEERING, TINY

import controlvae as cv
from controlvae.lab.config import override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.cuda_graph import CudaGraphEngine
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.select import make_engine

HOST, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def on_a_real_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if (
        os.environ.get("TRITON_INTERPRET") == "1"
    ):  # set by tests that run kernels on the host, for good
        pytest.skip("needs a process of its own: pytest tests/lab/engines/test_gpu.py")


def engines(experiments):
    """The plain engine on the host, and what trains the same on a GPU."""
    examples = load_dataset(experiments[0].data)
    return EagerEngine(experiments, examples, HOST), make_engine(experiments, examples, GPU)


def close(got, expected, rtol=2e-2, atol=2e-2):
    """Within what products in TF32 and sums in another order leave; a weight and its parts are small, and closer."""
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(got[..., STEERING], expected[..., STEERING], rtol=rtol, atol=5e-5)


def small(name, *sets):
    return override(preset(name), [*TINY, "training.precision=tf32", *sets])


@pytest.mark.parametrize("sets", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_gpu_trains_as_the_host_does_and_goes_on_from_its_checkpoint(sets):
    laws = enumerate(["PI(0.05)", "Geco(100)"], start=1)
    experiments = [
        small("shapes2d-quick", f"training.seed={seed}", f"control={law}", *sets)
        for seed, law in laws
    ]
    host, gpu = engines(experiments)
    close(gpu.advance(3), host.advance(3))
    _, resumed = engines(experiments)
    for model in range(2):
        resumed.restore(model, 3, host.snapshot(model))
    expected = host.advance(2)
    close(gpu.advance(2), expected)
    close(resumed.advance(2), expected)


def test_rounded_weights_are_the_weights_after_steps_and_after_a_checkpoint():
    experiments = [
        small("shapes2d-quick", "training.precision=bf16", f"training.seed={seed}")
        for seed in (1, 2)
    ]
    host, gpu = engines(experiments)
    gpu._load_block(0, 0)
    gpu._captured()  # which takes steps of its own, and takes them back
    assert gpu.network.parameters.operands.equal(gpu.network.parameters.weights.bfloat16())
    torch.testing.assert_close(gpu.advance(3)[..., 0], host.advance(3)[..., 0], rtol=5e-2, atol=0)
    gpu.restore(1, 3, host.snapshot(1))
    for _ in range(2):
        assert gpu.network.parameters.operands.equal(gpu.network.parameters.weights.bfloat16())
        gpu.advance(2)


@pytest.mark.parametrize(
    ("name", "more", "device"),
    [
        ("text-quick", ["model.dropout=0"], HOST),
        ("text-quick", [], GPU),  # a device has its own masks for dropout
        ("dialog-quick", [], HOST),
        (
            "shapes2d-quick",
            ["optimiser.clip=0.5", "optimiser.rate=Points((1,40),(1e-3,1e-4))", "data.images=64"],
            HOST,
        ),
    ],
)
def test_captured_steps_are_those_of_the_plain_engine_and_go_on_from_its_checkpoint(
    name, more, device
):
    sets = ["training.precision=fp32", "training.batch=8", "model.latents=4", *more]
    experiments = [override(preset(name), [*sets, f"training.seed={seed}"]) for seed in (1, 2)]
    examples = load_dataset(experiments[0].data)
    plain, captured = (
        EagerEngine(experiments, examples, device),
        make_engine(experiments, examples, GPU),
    )
    assert isinstance(captured, CudaGraphEngine)
    close(captured.advance(40), plain.advance(40), rtol=1e-3, atol=1e-3)
    for model in range(2):
        captured.restore(model, 40, plain.snapshot(model))
    close(captured.advance(5), plain.advance(5), rtol=1e-3, atol=1e-3)


def test_a_target_moved_while_training_is_that_of_its_model_alone():
    experiments = [
        small("shapes2d-quick", f"training.seed={seed}", "control=PI(18)") for seed in (1, 2)
    ]
    host, gpu = engines(experiments)
    for engine in (host, gpu):
        engine.advance(2)
        engine.set_target(1, 12.0)
    rows = gpu.advance(2)
    close(rows, host.advance(2))
    assert rows[:, :, row_columns(experiments[0]).index("target")].tolist() == [[18, 12], [18, 12]]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 24, 24), (1, 64, 64)], ids=str)
def test_bits_are_unpacked_in_order(shape):
    from controlvae.lab.engines.stacked import ops

    bits, indices = (
        torch.randint(0, 256, (5, math.prod(shape) // 8), dtype=torch.uint8),
        torch.tensor([[1, 2], [4, 0]]),
    )
    expected = BinaryImages(bits, shape, "random").batch(indices).movedim(2, -1)
    got = ops.unpack_bits(
        bits.to(GPU),
        indices[None].to(GPU),
        torch.zeros(1, device=GPU).long(),
        shape,
        torch.bfloat16,
    )
    assert got.cpu().float().equal(expected)


@pytest.mark.parametrize("channels", [64, 160, 256])
def test_layers_of_any_width_stand_beside_the_picture(channels):
    from controlvae.lab.engines.stacked.engine import StackedEngine

    sets = [
        "model=ImageVAE(4)",
        f"model.channels=({channels},16,16)",
        "objective.likelihood=squared-error",
    ]
    experiment = small("shapes2d-quick", *sets)
    host, gpu = engines([experiment])
    assert experiment.model.channels[0] == channels
    assert isinstance(gpu, StackedEngine)
    close(gpu.advance(2), host.advance(2))


@dataclass(frozen=True)
class Asking(cv.PI):
    """A law of a user's own that cannot be recorded: it asks the device for a number."""

    def update(self, state, measured, xp):
        float(measured)
        return super().update(state, measured, xp)


@pytest.mark.parametrize(
    "law",
    [cv.PI(18.0), cv.Auto(18.0), cv.LagrangeMultiplier(18.0, alpha=1e-3), Asking(18.0)],
    ids=repr,
)
@pytest.mark.parametrize(
    "settings", [{}, {"delayed": True}, {"accumulate": 4}, {"models": 1}], ids=repr
)
def test_a_controller_on_a_gpu_moves_as_on_the_host(law, settings):
    host, gpu = cv.Controller(law, **settings), cv.Controller(law, **settings)
    drawn = torch.Generator().manual_seed(0)
    for step in range(60):
        measured = 18 + 6 * torch.randn(
            () if host.models is None else (1,), generator=drawn, dtype=torch.float64
        )
        weights = [
            control.step(measured.to(device), last=step % 10 == 9)
            for control, device in ((host, HOST), (gpu, GPU))
        ]
        torch.testing.assert_close(weights[1].cpu(), weights[0], rtol=1e-9, atol=0)
        if step == 25:
            for control in (host, gpu):
                control.set_target(12.0)
        if step == 35:
            gpu = copy.deepcopy(gpu)
        if step == 45:
            saved, gpu = gpu.state_dict(), cv.Controller(law, **settings)
            gpu.load_state_dict(saved)
    moved = (
        {name: torch.as_tensor(value).cpu() for name, value in one.state_dict().items()}
        for one in (gpu, host)
    )
    torch.testing.assert_close(*moved, rtol=1e-9, atol=1e-12)
    torch.cuda.empty_cache()  # which a recording that failed would forbid, and any further one with it
    assert torch.randn(4, device=GPU).isfinite().all()


def test_a_controller_first_recorded_under_inference_mode_goes_on_outside():
    host, gpu = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0))
    for step in range(40):
        with torch.inference_mode(step < 20):
            weight = gpu.step(torch.tensor(20.0 + step % 3, device=GPU))
        assert weight.item() == pytest.approx(host.step(20.0 + step % 3), rel=1e-6)


def test_a_controller_within_a_graph_is_recorded_there():
    control, plain, kl = (
        cv.Controller(cv.Auto(18.0)),
        cv.Controller(cv.Auto(18.0)),
        torch.tensor(20.0, device=GPU),
    )
    for _ in range(20):
        control.step(kl)
        plain.step(20.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight = control.step(kl)
    for measured in (25.0, 15.0, 30.0):
        kl.fill_(measured)
        graph.replay()
        assert weight.item() == pytest.approx(plain.step(measured), rel=1e-6)
