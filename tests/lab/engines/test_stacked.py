"""Stacked engine against PyTorch modules; Triton's interpreter runs its kernels on the CPU."""

import math
import os

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated

import pytest
import torch
import torch.nn.functional as F
from small import CONTROL_COLUMNS, OBJECTIVES, TINY

pytest.importorskip("triton")

from controlvae.lab.config import override, preset
from controlvae.lab.data.composed_images import ComposedImages, LayerTable
from controlvae.lab.data.dataset import BinaryImages, ByteImages
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.rng import make_batch_orders
from controlvae.lab.engines.stacked import layouts, loader, ops, tiling
from controlvae.lab.engines.stacked.engine import StackedEngine
from controlvae.lab.engines.stacked.network import StackedVAE
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.models import ConvBatchNormVAE, ConvVAE

CPU = torch.device("cpu")
# bfloat16 cannot be compared: Triton's interpreter multiplies its bits as integers.
FP32 = tiling.PrecisionPolicy("fp32")


@pytest.fixture(autouse=True)
def use_few_splits(monkeypatch):
    """Use three splits. A GPU needs hundreds, but the interpreter runs them one by one."""
    monkeypatch.setattr(tiling, "weight_grad_splits", lambda *sizes: 3)
    monkeypatch.setattr(tiling, "batch_norm_splits", lambda models: 3)


def random_maps(models, batch, size, channels):
    return torch.randn(models, batch, size, size, channels)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def apply_per_model(function, maps, *weights):
    """Apply a PyTorch function, channels first, to each model's map and weights."""
    outputs = [
        function(one.movedim(-1, 1), *others) for one, *others in zip(maps, *weights, strict=True)
    ]
    return torch.stack(outputs).movedim(2, -1)


@pytest.fixture(
    params=[
        (1, 16, "fp32"),
        (3, 8, "fp32"),
        (3, 136, "fp32"),
        (16, 24, "fp32"),
        (32, 16, "fp32"),
        (1, 32, "bf16"),
        (24, 40, "bf16"),
        (32, 32, "bf16"),
    ],
    ids=str,
)
def conv_case(request, monkeypatch):
    """Large map, small map, weight and PyTorch's weight, with the tiles of a precision."""
    large, small, precision = request.param
    choose_tiles, policy = tiling.tile_config, tiling.PrecisionPolicy(precision)
    monkeypatch.setattr(tiling, "tile_config", lambda *sizes: choose_tiles(*sizes[:-1], policy))
    # Several tiles per program, if the tiles allow it.
    monkeypatch.setattr(tiling, "_TARGET_PROGRAMS", 1)
    x, dy = random_maps(2, 3, 8, large), random_maps(2, 3, 4, small)
    weight = torch.randn(2, 4, 4, large, small)
    # (models, small, large, 4, 4) is PyTorch's order for both kinds of convolution.
    return x, dy, weight, weight.permute(0, 4, 3, 1, 2)


def test_conv_matches_torch(conv_case):
    x, dy, weight, plain = conv_case
    bias = torch.randn(2, dy.shape[-1])
    expected = apply_per_model(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), x, plain, bias
    )
    assert_close(ops.conv(x, weight, FP32, bias=bias), expected)
    assert_close(ops.conv(x, weight, FP32, bias=bias, relu=True), expected.relu())


def test_conv_transpose_matches_torch(conv_case):
    x, dy, weight, plain = conv_case
    bias = torch.randn(2, x.shape[-1])
    expected = apply_per_model(
        lambda y, w, b: F.conv_transpose2d(y, w, b, stride=2, padding=1), dy, plain, bias
    )
    assert_close(ops.conv_transpose(dy, weight, FP32, bias=bias), expected)
    gated = ops.conv_transpose(dy, weight, FP32, bias=bias, gate=x)
    assert_close(gated, torch.where(x > 0, expected, 0.0))


@pytest.mark.parametrize("large_bias", [False, True])
def test_conv_weight_grad_matches_torch(conv_case, large_bias):
    x, dy, weight, plain = conv_case
    biased = x if large_bias else dy
    splits = tiling.large_bias_splits(x.shape[-1], 3) if large_bias else 3
    grad = torch.full((2, 3, *weight.shape[1:]), 7.0)
    bias_grad = torch.full((2, splits, biased.shape[-1]), 7.0)
    ops.conv_weight_grad(x, dy, grad, bias_grad, FP32, large_bias=large_bias)
    expected = [
        torch.nn.grad.conv2d_weight(
            x[m].movedim(-1, 1), plain[m].shape, dy[m].movedim(-1, 1), stride=2, padding=1
        )
        for m in range(2)
    ]
    assert_close(grad.sum(1), torch.stack(expected).permute(0, 3, 4, 2, 1))
    assert_close(bias_grad.sum(1), biased.sum((1, 2, 3)))


def test_bytes_are_unpacked_and_scaled():
    rows = torch.randint(0, 256, (5, 4 * 4 * 3), dtype=torch.uint8)
    indices, step = torch.tensor([[1, 2], [4, 0]]), torch.tensor([1])
    expected = ByteImages(rows, (3, 4, 4), "random").batch(indices).movedim(2, -1)
    steps = torch.stack([torch.zeros_like(indices), indices])
    assert_close(ops.unpack_bytes(rows, steps, step, (3, 4, 4), torch.float32), expected)
    unscaled = ops.unpack_bytes(rows, steps, step, (3, 4, 4), torch.uint8)
    assert unscaled.flatten(2).equal(rows[indices])


def composed_images(count=7):
    """Return images of 8x8 with random layers, which exceed 255 and fall below zero."""
    layers = torch.randint(-9_000, 16_000, (480, 21, 64), dtype=torch.int16)
    channels = torch.randint(0, 6, (10, 3), dtype=torch.uint8)
    sizes = torch.tensor([10, 10, 10, 8, 4, 15])
    rows = (torch.rand(count, 6) * sizes).byte()
    return ComposedImages(rows, (3, 8, 8), "random", table=LayerTable(layers, 64, channels))


def test_images_are_composed_as_the_eager_engine_composes_them():
    images = composed_images()
    indices, step = torch.tensor([[1, 2, 6], [4, 0, 4]]), torch.tensor([1])
    steps = torch.stack([torch.zeros_like(indices), indices])
    expected = images.batch(indices).movedim(2, -1)
    assert {0.0, 1.0} <= set(expected.unique().tolist())
    arguments = (images.table, images.rows, steps, step, (3, 8, 8))
    assert_close(ops.compose_images(*arguments, torch.float32), expected)
    assert ops.compose_images(*arguments, torch.uint8).equal((expected * 255).round().byte())


@pytest.mark.parametrize("kind", [loader.ResidentLoader, loader.StreamingLoader])
def test_both_loaders_compose_images(kind):
    images = composed_images(40)
    orders = [[images.order(4, seed)] for seed in (1, 2)]
    batches = kind(images, orders, CPU)
    batches.load(0)
    for position in (0, 3, batches.block_steps - 1):
        x, exact = batches.read_batch(torch.tensor([position]), 0, torch.float32)
        for model, (order,) in enumerate(orders):
            expected = images.batch(order.indices(position)).movedim(1, -1)
            assert_close(x[model], expected)
            assert exact[model].equal((expected * 255).round().byte())


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (1, 48, 48), (3, 8, 8)], ids=str)
def test_bits_are_unpacked_in_order(shape):
    rows = torch.randint(0, 256, (5, math.prod(shape) // 8), dtype=torch.uint8)
    indices = torch.tensor([[1, 2], [4, 0]])
    expected = BinaryImages(rows, shape, "random").batch(indices).movedim(2, -1)
    steps = torch.stack([torch.zeros_like(indices), indices])
    assert ops.unpack_bits(rows, steps, torch.tensor([1]), shape, torch.float32).equal(expected)


def sum_losses(logits, mean, log_variance):
    return logits.sin().sum() + mean.square().sum() + log_variance.exp().sum()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ConvVAE((1, 16, 16), 3, (8, 16), 24),
        lambda: ConvVAE((1, 16, 16), 3, (8, 16), 24, (20,)),
        lambda: ConvVAE((1, 16, 16), 3, (8, 16, 16, 16), 24, (20,)),
        lambda: ConvBatchNormVAE((3, 16, 16), 3, (8, 72)),
        lambda: ConvBatchNormVAE((3, 16, 16), 3, (8, 16, 16, 24)),
    ],
    ids=["paper", "burgess", "burgess, one pixel", "batch norm", "batch norm, one pixel"],
)
def test_gradients_and_adam_match_torch(build):
    torch.manual_seed(0)
    plain = [build() for _ in range(2)]
    stack = StackedVAE(plain[0], 2, "fp32", CPU)
    for number, model in enumerate(plain):
        for bias in (p for p in model.parameters() if p.dim() == 1):
            torch.nn.init.normal_(bias, std=0.1)
        stack.parameters.load(number, {"weight": dict(model.named_parameters())})
    x = torch.rand(2, 3, plain[0].encoder[0].in_channels, 16, 16).round()
    noise = torch.randn(2, 3, 3)
    mean, log_variance = stack.encode(x.movedim(2, -1).contiguous()).chunk(2, dim=2)
    logits = stack.decode(mean + torch.exp(0.5 * log_variance) * noise)
    sum_losses(logits, mean, log_variance).backward()
    stack.parameters.step(torch.tensor(0), torch.tensor(1e-3), 0.9, 0.999)
    slots = {slot.name: slot for slot in stack.parameters.slots}
    for number, model in enumerate(plain):
        expected, posterior = model(x[number], noise[number])
        assert_close(logits[number].movedim(-1, 1), expected)
        sum_losses(expected, posterior.mean, posterior.log_variance).backward()
        largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
        for name, parameter in model.named_parameters():
            gradient = slots[name].to_plain(slots[name].gradient[number].sum(0))
            # The gradient of a bias before a batch norm is zero up to rounding.
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-7 * largest)
        torch.optim.Adam(model.parameters(), lr=1e-3).step()
        exported = stack.parameters.export(number)["weight"]
        for name, parameter in model.named_parameters():
            # Adam scales up a gradient that is rounding error only.
            significant = parameter.grad.abs() > 1e-4
            torch.testing.assert_close(
                exported[name][significant], parameter.detach()[significant], rtol=1e-5, atol=1e-6
            )
        for name, buffer in stack.buffers.items():
            assert_close(buffer[number], model.state_dict()[name])


def test_operands_are_rounded_weights():
    slot = layouts.Slot("weight", (300,), 2, lambda value: value, lambda value: value)
    parameters = Parameters([slot], 2, torch.bfloat16, CPU)
    for model in range(2):
        parameters.load(model, {"weight": {"weight": torch.randn(300)}})
    assert slot.operand.equal(slot.weight.bfloat16())
    before = slot.weight.clone()
    slot.gradient.normal_()
    parameters.step(torch.tensor(0), torch.tensor(1.0), 0.9, 0.999)
    assert (slot.weight - before).abs().min() > 0.9
    # Triton's interpreter truncates where a GPU rounds.
    torch.testing.assert_close(slot.operand.float(), slot.weight, rtol=2**-7, atol=0)


@pytest.mark.parametrize("sets", OBJECTIVES.values(), ids=OBJECTIVES)
def test_stacked_engine_matches_eager_engine_and_resumes(sets):
    smaller = [*TINY, "training.batch=2", "model.channels=(4,4)"]
    experiments = [
        override(
            preset("shapes2d-quick"),
            [*smaller, f"training.seed={seed}", f"control={law}", *sets],
        )
        for seed, law in enumerate(["PI(0.05)", "Geco(100)"], start=1)
    ]
    examples = load_dataset(experiments[0].data)
    eager, eager_resumed = (EagerEngine(experiments, examples, CPU) for _ in range(2))
    stacked, stacked_resumed = (StackedEngine(experiments, examples, CPU) for _ in range(2))
    rows, expected = stacked.advance(1), eager.advance(1)
    assert_close(rows, expected)
    torch.testing.assert_close(
        rows[..., CONTROL_COLUMNS], expected[..., CONTROL_COLUMNS], rtol=1e-4, atol=1e-7
    )
    for model in range(2):
        eager_resumed.restore(model, 1, stacked.snapshot(model))
        stacked_resumed.restore(model, 1, eager.snapshot(model))
    # The second of these steps depends on Adam's moments and on its rate.
    expected = eager.advance(2)
    for engine in (stacked, eager_resumed, stacked_resumed):
        assert_close(engine.advance(2), expected)


def test_stacked_engine_trains_on_composed_images_as_the_eager_engine():
    sets = [*TINY, "model.channels=(4,4)", "model.hidden=16", "control=PI(0.05)"]
    experiments = [
        override(preset("shapes3d-quick"), [*sets, f"training.seed={seed}"]) for seed in (1, 2)
    ]
    examples = composed_images(64)
    eager, stacked = (
        EagerEngine(experiments, examples, CPU),
        StackedEngine(experiments, examples, CPU),
    )
    assert_close(stacked.advance(3), eager.advance(3))


def test_streaming_loader_reads_the_same_images(monkeypatch):
    monkeypatch.setattr(loader, "_STREAM_BYTES", 3 * 4 * 128)  # three steps per block
    experiment = override(preset("shapes2d-quick"), TINY)
    examples = load_dataset(experiment.data)
    orders = [make_batch_orders(experiment, examples)]
    resident = loader.ResidentLoader(examples, orders, CPU)
    streaming = loader.StreamingLoader(examples, orders, CPU)
    assert streaming.block_steps == 3
    resident.load(0)
    for block in (0, 1, 4, 5):
        streaming.load(block)
        for position in range(3):
            images, _ = streaming.read_batch(torch.tensor([position]), 0, torch.float32)
            step = torch.tensor([3 * block + position])
            assert images.equal(resident.read_batch(step, 0, torch.float32)[0])
        streaming.prepare(block + 1)
