"""Pixel geometry shared by the convolution kernels. No patches are written to memory.

A stride-2 layer with 4x4 kernels and padding 1 links a *large* feature map (2H, 2W) and a *small*
one (H, W). Small pixel (h, w) and tap (r, c) meet large pixel (2h + r - 1, 2w + c - 1). Three
matrix products over that relation give convolution, transposed convolution and their gradients:

    convolution             small = Σ_tap large · W[tap]
    transposed convolution  large = Σ_tap small · W[tap]ᵀ
    weight gradient         dW[tap] = Σ_pixels largeᵀ · small

The input gradient of a convolution is a transposed convolution, and the other way round.

Cut the large map into *blocks* of 2x2 pixels: (H + 1) · (W + 1) of them, the first with its corner
at (-1, -1). Block (p, q) meets the small pixels (p - i, q - j) with i and j in {0, 1} and no
others; tap (2i + a, 2j + b) links them to pixel (a, b) of the block. So a block is a row of 4 · CL
numbers, its four small neighbours are a row of 4 · CS numbers, and both the transposed convolution
and the weight gradient are one dense matrix product over these rows. Each row is read as runs of
two adjacent pixels. Before this, a transposed convolution read every small pixel sixteen times and
a weight gradient every large pixel four times; with 25 models, weight gradients went from 0.88 to
0.35 ms a step.

Feature maps are (models, batch, height, width, channels). Weights are (models, 4, 4, CL, CS), where
CL and CS are the channels of the large and the small map.
"""

import triton
import triton.language as tl


@triton.jit
def unravel(position, H, W):
    """Return (example, row, column) of a pixel number."""
    return position // (H * W), (position // W) % H, position % W


@triton.jit
def load_patches(large, position, end, k, H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr):
    """Load the elements k = (tap row, tap column, channel) of the 4x4 patches at small pixels.

    The four pixels of a patch row are adjacent in memory.
    """
    example, h, w = unravel(position, H, W)
    y = 2 * h[:, None] + (k // (4 * CL))[None, :] - 1
    x = 2 * w[:, None] + (k // CL % 4)[None, :] - 1
    mask = (
        (y >= 0)
        & (y < 2 * H)
        & (x >= 0)
        & (x < 2 * W)
        & (position < end)[:, None]
        & (k < 16 * CL)[None, :]
    )
    row = ((example * 2 * H)[:, None] + y) * 2 * W + (2 * w - 1)[:, None]
    return tl.load(large + row * CL + (k % (4 * CL))[None, :], mask=mask, other=0.0)


@triton.jit
def block_offsets(example, p, q, m, valid, H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr):
    """Return offsets and mask, in a large map, of the elements m = (a, b, channel) of blocks."""
    y = (2 * p - 1)[:, None] + (m // (2 * CL))[None, :]
    x = (2 * q - 1)[:, None] + (m // CL % 2)[None, :]
    mask = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & valid[:, None] & (m < 4 * CL)[None, :]
    row = ((example * 2 * H)[:, None] + y) * 2 * W + (2 * q - 1)[:, None]
    return row * CL + (m % (2 * CL))[None, :], mask


@triton.jit
def neighbour_offsets(example, p, q, n, valid, H: tl.constexpr, W: tl.constexpr, CS: tl.constexpr):
    """Return offsets and mask, in a small map, of the elements n of the neighbours of blocks.

    n = (i, 1 - j, channel) runs over the four small pixels of a block. The order 1 - j keeps the
    two pixels of a row adjacent in memory.
    """
    y = p[:, None] - (n // (2 * CS))[None, :]
    x = (q - 1)[:, None] + (n // CS % 2)[None, :]
    mask = (y >= 0) & (y < H) & (x >= 0) & (x < W) & valid[:, None] & (n < 4 * CS)[None, :]
    row = ((example * H)[:, None] + y) * W + (q - 1)[:, None]
    return row * CS + (n % (2 * CS))[None, :], mask


@triton.jit
def weight_offsets(m, n, CL: tl.constexpr, CS: tl.constexpr):
    """Return the offsets of W[2i + a, 2j + b], the weights between elements m and n."""
    r = 2 * (n // (2 * CS)) + m // (2 * CL)
    c = 2 * (1 - n // CS % 2) + m // CL % 2
    return ((r * 4 + c) * CL + m % CL) * CS + n % CS
