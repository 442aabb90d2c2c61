"""GPU engines and controllers on a real GPU, against the eager engine on the host.

Run it alone: `pytest tests/lab/engines/test_gpu.py`.
"""

import copy
import math
import os
from dataclasses import dataclass, replace

import pytest
import torch
from small import CONTROL_COLUMNS, OBJECTIVES, TINY

import controlvae as cv
from controlvae.lab.config import RateRange, Shapes3D, override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.cuda_graph import CudaGraphEngine
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.measurements import row_columns
from controlvae.lab.engines.select import make_engine
from controlvae.lab.engines.stacked_text.engine import StackedTextEngine

HOST, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def require_gpu():
    """Skip without a GPU, or in a process where another test has chosen Triton's interpreter."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs a separate process: pytest tests/lab/engines/test_gpu.py")


def make_engines(experiments):
    """Return the eager engine on the host and the engine chosen for the GPU."""
    examples = load_dataset(experiments[0].data)
    return EagerEngine(experiments, examples, HOST), make_engine(experiments, examples, GPU)


def assert_close(actual, expected, rtol=2e-2, atol=2e-2):
    """Compare rows up to TF32 products and the order of sums; the small weights more closely."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    actual, expected = actual[..., CONTROL_COLUMNS], expected[..., CONTROL_COLUMNS]
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=5e-5)


def small_experiment(name, *sets):
    return override(preset(name), [*TINY, "training.precision=tf32", *sets])


@pytest.mark.parametrize("sets", OBJECTIVES.values(), ids=OBJECTIVES)
def test_gpu_matches_host_and_resumes_its_checkpoint(sets):
    laws = enumerate(["PI(0.05)", "Geco(100)"], start=1)
    experiments = [
        small_experiment("shapes2d-quick", f"training.seed={seed}", f"control={law}", *sets)
        for seed, law in laws
    ]
    host, gpu = make_engines(experiments)
    assert_close(gpu.advance(3), host.advance(3))
    _, resumed = make_engines(experiments)
    for model in range(2):
        resumed.restore(model, 3, host.snapshot(model))
    expected = host.advance(2)
    assert_close(gpu.advance(2), expected)
    assert_close(resumed.advance(2), expected)


def test_operands_stay_rounded_weights():
    experiments = [
        small_experiment("shapes2d-quick", "training.precision=bf16", f"training.seed={seed}")
        for seed in (1, 2)
    ]
    host, gpu = make_engines(experiments)
    gpu._load_block(0, 0)
    gpu._captured()  # takes warm-up steps and undoes them
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
        ("text-quick", [], GPU),  # dropout masks differ between devices
        ("dialog-quick", [], HOST),
        (
            "shapes2d-quick",
            ["optimiser.clip=0.5", "optimiser.rate=Points((1,40),(1e-3,1e-4))", "data.images=64"],
            HOST,
        ),
    ],
)
def test_cuda_graph_engine_matches_eager_engine(name, more, device):
    sets = ["training.precision=fp32", "training.batch=8", "model.latents=4", *more]
    experiments = [override(preset(name), [*sets, f"training.seed={seed}"]) for seed in (1, 2)]
    examples = load_dataset(experiments[0].data)
    plain = EagerEngine(experiments, examples, device)
    captured = make_engine(experiments, examples, GPU)
    assert isinstance(captured, CudaGraphEngine)
    assert_close(captured.advance(40), plain.advance(40), rtol=1e-3, atol=1e-3)
    for model in range(2):
        captured.restore(model, 40, plain.snapshot(model))
    assert_close(captured.advance(5), plain.advance(5), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "more", "device"),
    [
        ("text-quick", ["model.dropout=0"], HOST),
        ("text-quick", ["model.decoder=lstm"], GPU),  # dropout masks differ between devices
        ("dialog-quick", [], HOST),
    ],
)
def test_stacked_text_engine_matches_eager_engine(name, more, device):
    sets = ["training.precision=fp32", "training.batch=8", "training.widths=shared", *more]
    experiments = [override(preset(name), [*sets, f"training.seed={seed}"]) for seed in (1, 2)]
    examples = load_dataset(experiments[0].data)
    plain = EagerEngine(experiments, examples, device)
    stacked = make_engine(experiments, examples, GPU)
    assert isinstance(stacked, StackedTextEngine)
    assert_close(stacked.advance(40), plain.advance(40), rtol=2e-3, atol=2e-3)
    for model in range(2):
        stacked.restore(model, 40, plain.snapshot(model))
    assert_close(stacked.advance(5), plain.advance(5), rtol=2e-3, atol=2e-3)


def test_set_target_changes_one_model():
    experiments = [
        small_experiment("shapes2d-quick", f"training.seed={seed}", "control=PI(18)")
        for seed in (1, 2)
    ]
    host, gpu = make_engines(experiments)
    for engine in (host, gpu):
        engine.advance(2)
        engine.set_target(1, 12.0)
    rows = gpu.advance(2)
    assert_close(rows, host.advance(2))
    assert rows[:, :, row_columns(experiments[0]).index("target")].tolist() == [[18, 12], [18, 12]]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 24, 24), (1, 64, 64)], ids=str)
def test_bits_are_unpacked_in_order(shape):
    from controlvae.lab.engines.stacked import ops

    rows = torch.randint(0, 256, (5, math.prod(shape) // 8), dtype=torch.uint8)
    indices = torch.tensor([[1, 2], [4, 0]])
    expected = BinaryImages(rows, shape, "random").batch(indices).movedim(2, -1)
    step = torch.zeros(1, device=GPU).long()
    images = ops.unpack_bits(rows.to(GPU), indices[None].to(GPU), step, shape, torch.bfloat16)
    assert images.cpu().float().equal(expected)


def test_composed_images_are_equal_on_the_gpu_and_in_a_captured_graph():
    from controlvae.lab.engines.stacked import ops

    images = load_dataset(Shapes3D(images=2_000))
    indices = torch.randint(0, 2_000, (5, 2, 64))
    expected = images.batch(indices).movedim(3, -1)
    there = images.to(GPU)
    assert there.batch(indices.to(GPU)).movedim(3, -1).cpu().equal(expected)
    step, steps = torch.zeros(1, device=GPU).long(), indices.to(GPU)
    arguments = (there.table, there.rows, steps, step, images.shape)
    ops.compose_images(*arguments, torch.uint8)  # compile before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        composed = ops.compose_images(*arguments, torch.uint8)
    for number in range(5):
        step.fill_(number)
        graph.replay()
        assert composed.cpu().equal((expected[number] * 255).round().byte())


def test_shapes3d_trains_on_the_stacked_engine_as_on_the_host():
    from controlvae.lab.engines.stacked.engine import StackedEngine

    experiments = [
        small_experiment("shapes3d-quick", "model.hidden=16", f"training.seed={seed}")
        for seed in (1, 2)
    ]
    host, gpu = make_engines(experiments)
    assert isinstance(gpu, StackedEngine)
    assert_close(gpu.advance(5), host.advance(5))


@pytest.mark.parametrize("channels", [64, 160, 256])
def test_first_layer_may_have_any_width(channels):
    from controlvae.lab.engines.stacked.engine import StackedEngine

    sets = [
        "model=ImageVAE(4)",
        f"model.channels=({channels},16,16)",
        "objective.likelihood=squared-error",
    ]
    experiment = small_experiment("shapes2d-quick", *sets)
    host, gpu = make_engines([experiment])
    assert experiment.model.channels[0] == channels
    assert isinstance(gpu, StackedEngine)
    assert_close(gpu.advance(2), host.advance(2))


@dataclass(frozen=True)
class SynchronisingLaw(cv.PI):
    """Custom law that cannot be captured: it reads a number from the device."""

    def update(self, state, measured, xp):
        float(measured)
        return super().update(state, measured, xp)


@pytest.mark.parametrize(
    "law",
    [cv.PI(18.0), cv.Auto(18.0), cv.LagrangeMultiplier(18.0, alpha=1e-3), SynchronisingLaw(18.0)],
    ids=repr,
)
@pytest.mark.parametrize(
    "settings", [{}, {"delayed": True}, {"accumulate": 4}, {"models": 1}], ids=repr
)
def test_controller_on_gpu_matches_host(law, settings):
    host, gpu = cv.Controller(law, **settings), cv.Controller(law, **settings)
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        measured = 18 + 6 * torch.randn(
            () if host.models is None else (1,), generator=generator, dtype=torch.float64
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
    states = (
        {name: torch.as_tensor(value).cpu() for name, value in one.state_dict().items()}
        for one in (gpu, host)
    )
    torch.testing.assert_close(*states, rtol=1e-9, atol=1e-12)
    # A failed capture that was left open would forbid this call and any further capture.
    torch.cuda.empty_cache()
    assert torch.randn(4, device=GPU).isfinite().all()


def test_controller_captured_in_inference_mode_works_outside():
    host, gpu = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0))
    for step in range(40):
        with torch.inference_mode(step < 20):
            weight = gpu.step(torch.tensor(20.0 + step % 3, device=GPU))
        assert weight.item() == pytest.approx(host.step(20.0 + step % 3), rel=1e-6)


def test_controller_step_can_be_captured_in_a_graph():
    control, plain = cv.Controller(cv.Auto(18.0)), cv.Controller(cv.Auto(18.0))
    kl = torch.tensor(20.0, device=GPU)
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


def test_rate_conditioned_model_matches_host_and_moves_between_devices():
    base = small_experiment("shapes2d-quick", "training.batch=16")
    experiment = replace(base, control=cv.Auto(8.5), rates=RateRange(3, 24, bins=4))
    host, device = make_engines([experiment])
    assert isinstance(device, CudaGraphEngine)
    expected, actual = host.advance(8), device.advance(8)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    other = make_engine([experiment], load_dataset(experiment.data), GPU)
    other.restore(0, host.step, host.snapshot(0))
    torch.testing.assert_close(other.advance(4), host.advance(4), rtol=2e-2, atol=2e-2)
