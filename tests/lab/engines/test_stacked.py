"""The stacked engine against plain modules, its kernels run by Triton's interpreter on the CPU."""

import math
import os

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated

import pytest
import torch
import torch.nn.functional as F
from small import OBJECTIVES, STEERING, TINY

pytest.importorskip("triton")

from controlvae.lab.config import override, preset
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
# In bfloat16 nothing can be compared: Triton's interpreter multiplies its bits as whole numbers.
EXACT = tiling.PrecisionPolicy("fp32")


@pytest.fixture(autouse=True)
def few_parts(monkeypatch):
    """A large card wants sums in hundreds of parts; the interpreter runs them one after the other."""
    monkeypatch.setattr(tiling, "weight_grad_splits", lambda *sizes: 3)
    monkeypatch.setattr(tiling, "batch_norm_splits", lambda models: 3)


def maps(models, batch, size, channels):
    return torch.randn(models, batch, size, size, channels)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def per_model(function, maps, *weights):
    """A plain function of one model's map, channels first, and its weights, for each model of a stack."""
    each = [function(one.movedim(-1, 1), *own) for one, *own in zip(maps, *weights, strict=True)]
    return torch.stack(each).movedim(2, -1)


@pytest.mark.parametrize(
    ("large", "small", "tiles"),
    [
        (1, 16, "fp32"),
        (3, 8, "fp32"),
        (3, 136, "fp32"),
        (16, 24, "fp32"),
        (32, 16, "fp32"),
        (1, 32, "bf16"),
        (24, 40, "bf16"),
        (32, 32, "bf16"),
    ],
)
def test_the_three_products_are_convolutions_and_their_gradients(large, small, tiles, monkeypatch):
    own, chosen = tiling.tile_config, tiling.PrecisionPolicy(tiles)
    monkeypatch.setattr(tiling, "tile_config", lambda *sizes: own(*sizes[:-1], chosen))
    monkeypatch.setattr(tiling, "_TARGET_PROGRAMS", 1)  # turns, where tiles allow them
    x, dy, weight = maps(2, 3, 8, large), maps(2, 3, 4, small), torch.randn(2, 4, 4, large, small)
    plain = weight.permute(
        0, 4, 3, 1, 2
    )  # (models, small, large, 4, 4), torch's order for both kinds
    bias_small, bias_large = torch.randn(2, small), torch.randn(2, large)
    down = per_model(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), x, plain, bias_small)
    close(ops.conv(x, weight, EXACT, bias=bias_small), down)
    close(ops.conv(x, weight, EXACT, bias=bias_small, relu=True), down.relu())
    up = per_model(
        lambda y, w, b: F.conv_transpose2d(y, w, b, stride=2, padding=1), dy, plain, bias_large
    )
    close(ops.conv_transpose(dy, weight, EXACT, bias=bias_large), up)
    gated = ops.conv_transpose(dy, weight, EXACT, bias=bias_large, gate=x)
    close(gated, torch.where(x > 0, up, 0.0))
    for large_bias, channels, parts in (
        (False, small, 3),
        (True, large, tiling.large_bias_splits(large, 3)),
    ):
        grad, bias_grad = (
            torch.full((2, 3, *weight.shape[1:]), 7.0),
            torch.full((2, parts, channels), 7.0),
        )
        ops.conv_weight_grad(x, dy, grad, bias_grad, EXACT, large_bias=large_bias)
        expected = torch.stack(
            [
                torch.nn.grad.conv2d_weight(
                    x[m].movedim(-1, 1), plain[m].shape, dy[m].movedim(-1, 1), stride=2, padding=1
                )
                for m in range(2)
            ]
        ).permute(0, 3, 4, 2, 1)
        close(grad.sum(1), expected)
        close(bias_grad.sum(1), (x if large_bias else dy).sum((1, 2, 3)))


def test_bytes_are_pictures_in_255ths():
    rows, indices = (
        torch.randint(0, 256, (5, 4 * 4 * 3), dtype=torch.uint8),
        torch.tensor([[1, 2], [4, 0]]),
    )
    expected = ByteImages(rows, (3, 4, 4), "random").batch(indices).movedim(2, -1)
    steps = torch.stack([torch.zeros_like(indices), indices])
    close(ops.unpack_bytes(rows, steps, torch.tensor([1]), (3, 4, 4), torch.float32), expected)
    assert (
        ops.unpack_bytes(rows, steps, torch.tensor([1]), (3, 4, 4), torch.uint8)
        .flatten(2)
        .equal(rows[indices])
    )


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (1, 48, 48), (3, 8, 8)], ids=str)
def test_bits_are_unpacked_in_order(shape):
    bits, indices = (
        torch.randint(0, 256, (5, math.prod(shape) // 8), dtype=torch.uint8),
        torch.tensor([[1, 2], [4, 0]]),
    )
    expected = BinaryImages(bits, shape, "random").batch(indices).movedim(2, -1)
    steps = torch.stack([torch.zeros_like(indices), indices])
    assert ops.unpack_bits(bits, steps, torch.tensor([1]), shape, torch.float32).equal(expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ConvVAE((1, 16, 16), 3, (8, 16), 24),
        lambda: ConvVAE((1, 16, 16), 3, (8, 16), 24, (20,)),
        lambda: ConvVAE((1, 16, 16), 3, (8, 16, 16, 16), 24, (20,)),
        lambda: ConvBatchNormVAE((3, 16, 16), 3, (8, 72)),
        lambda: ConvBatchNormVAE((3, 16, 16), 3, (8, 16, 16, 24)),
    ],
    ids=[
        "paper",
        "burgess",
        "burgess, down to a pixel",
        "batch norm",
        "batch norm, down to a pixel",
    ],
)
def test_gradients_and_adam_are_those_of_the_plain_modules(build):
    torch.manual_seed(0)
    plain = [build() for _ in range(2)]
    stack = StackedVAE(plain[0], 2, "fp32", CPU)
    for number, model in enumerate(plain):
        for bias in (p for p in model.parameters() if p.dim() == 1):
            torch.nn.init.normal_(bias, std=0.1)
        stack.parameters.load(number, {"weight": dict(model.named_parameters())})
    x, noise = (
        torch.rand(2, 3, plain[0].encoder[0].in_channels, 16, 16).round(),
        torch.randn(2, 3, 3),
    )
    mean, log_variance = stack.encode(x.movedim(2, -1).contiguous()).chunk(2, dim=2)
    logits = stack.decode(mean + torch.exp(0.5 * log_variance) * noise)
    (logits.sin().sum() + mean.square().sum() + log_variance.exp().sum()).backward()
    stack.parameters.step(torch.tensor(0), torch.tensor(1e-3), 0.9, 0.999)
    for number, model in enumerate(plain):
        expected, posterior = model(x[number], noise[number])
        close(logits[number].movedim(-1, 1), expected)
        (
            expected.sin().sum()
            + posterior.mean.square().sum()
            + posterior.log_variance.exp().sum()
        ).backward()
        slots = {slot.name: slot for slot in stack.parameters.slots}
        largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
        for name, parameter in model.named_parameters():
            gradient = slots[name].to_plain(slots[name].gradient[number].sum(0))
            # Before a batch norm a bias has no gradient but the rounding of what flows by.
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-7 * largest)
        torch.optim.Adam(model.parameters(), lr=1e-3).step()
        exported = stack.parameters.export(number)["weight"]
        for name, parameter in model.named_parameters():
            told = parameter.grad.abs() > 1e-4  # where there is rounding alone Adam scales it up
            torch.testing.assert_close(
                exported[name][told], parameter.detach()[told], rtol=1e-5, atol=1e-6
            )
        for name, buffer in stack.buffers.items():
            close(buffer[number], model.state_dict()[name])


def test_products_of_rounded_numbers_find_the_weights_rounded():
    slot = layouts.Slot("weight", (300,), 2, lambda value: value, lambda value: value)
    parameters = Parameters([slot], 2, torch.bfloat16, CPU)
    for model in range(2):
        parameters.load(model, {"weight": {"weight": torch.randn(300)}})
    assert slot.operand.equal(slot.weight.bfloat16())
    before = slot.weight.clone()
    slot.gradient.normal_()
    parameters.step(torch.tensor(0), torch.tensor(1.0), 0.9, 0.999)
    assert (slot.weight - before).abs().min() > 0.9
    # Triton's interpreter cuts digits off where a GPU rounds.
    torch.testing.assert_close(slot.operand.float(), slot.weight, rtol=2**-7, atol=0)


@pytest.mark.parametrize("sets", OBJECTIVES.values(), ids=OBJECTIVES)
def test_the_engine_trains_like_the_plain_one_and_resumes_either_way(sets):
    laws, tinier = ["PI(0.05)", "Geco(100)"], [*TINY, "training.batch=2", "model.channels=(4,4)"]
    experiments = [
        override(
            preset("shapes2d-quick"), [*tinier, f"training.seed={s + 1}", f"control={law}", *sets]
        )
        for s, law in enumerate(laws)
    ]
    examples = load_dataset(experiments[0].data)
    plain, stacked = (
        EagerEngine(experiments, examples, CPU),
        StackedEngine(experiments, examples, CPU),
    )
    rows, expected = stacked.advance(1), plain.advance(1)
    close(rows, expected)
    torch.testing.assert_close(rows[..., STEERING], expected[..., STEERING], rtol=1e-4, atol=1e-7)
    crossed_plain, crossed_stacked = (
        EagerEngine(experiments, examples, CPU),
        StackedEngine(experiments, examples, CPU),
    )
    for model in range(2):
        crossed_plain.restore(model, 1, stacked.snapshot(model))
        crossed_stacked.restore(model, 1, plain.snapshot(model))
    expected = plain.advance(2)  # the second of which Adam's moments decide, and its rate
    for engine in (stacked, crossed_plain, crossed_stacked):
        close(engine.advance(2), expected)


def test_streamed_pictures_are_the_resident_ones(monkeypatch):
    monkeypatch.setattr(loader, "_STREAM_BYTES", 3 * 4 * 128)  # three steps a block
    experiment = override(preset("shapes2d-quick"), TINY)
    examples = load_dataset(experiment.data)
    resident, streamed = (
        kind(examples, [make_batch_orders(experiment, examples)], CPU)
        for kind in (loader.ResidentLoader, loader.StreamingLoader)
    )
    assert streamed.block_steps == 3
    resident.load(0)
    for block in (0, 1, 4, 5):
        streamed.load(block)
        for position in range(3):
            got = streamed.read_batch(torch.tensor([position]), 0, torch.float32)[0]
            assert got.equal(
                resident.read_batch(torch.tensor([3 * block + position]), 0, torch.float32)[0]
            )
        streamed.prepare(block + 1)
