"""Inception network of FID and KID: TensorFlow's graph of 2015-12-05, up to its third pool.

Heusel et al. defined FID with this graph; features of another network give another metric. It
differs from torchvision's Inception: average pools exclude the border, the last block has a max
pool, and the weights are others.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 299
RESIZE = (
    "bilinear to 299x299 as in the TensorFlow 1 graph (corners not aligned, no antialiasing), "
    "from 8-bit values"
)

# A branch is a chain of layers (name, width, kernel). A string is a pooling layer. A list at the
# end holds parallel layers.
Layer = tuple[str, int, int | tuple[int, int]]
Branch = tuple[str | Layer | list[Layer], ...]


class Inception(nn.Module):
    """Network that maps images to the 2,048 features of pool3.

    Batch norms are folded into the convolutions before them. Layers have the names of torchvision
    and pytorch-fid. A new instance has random weights;
    `controlvae.lab.evaluation.inception_weights.load_inception` returns one with the published
    weights.

    Args:
        extractor: Description of the weights, for reports.
    """

    def __init__(self, extractor: str = "Inception without its weights") -> None:
        super().__init__()
        self.extractor = extractor
        self.Conv2d_1a_3x3 = _convolution(3, 32, 3, stride=2, padding=0)
        self.Conv2d_2a_3x3 = _convolution(32, 32, 3, padding=0)
        self.Conv2d_2b_3x3 = _convolution(32, 64, 3)
        self.Conv2d_3b_1x1 = _convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = _convolution(80, 192, 3, padding=0)
        self.Mixed_5b = Mixed(192, *_block_35(32))
        self.Mixed_5c = Mixed(256, *_block_35(64))
        self.Mixed_5d = Mixed(288, *_block_35(64))
        self.Mixed_6a = Mixed(288, *_TO_17, halve=True)
        self.Mixed_6b = Mixed(768, *_block_17(128))
        self.Mixed_6c = Mixed(768, *_block_17(160))
        self.Mixed_6d = Mixed(768, *_block_17(160))
        self.Mixed_6e = Mixed(768, *_block_17(192))
        self.Mixed_7a = Mixed(768, *_TO_8, halve=True)
        self.Mixed_7b = Mixed(1280, *_block_8("average"))
        self.Mixed_7c = Mixed(2048, *_block_8("max"))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images, (n, 2048).

        Args:
            images: (n, 1 or 3 channels, height, width), bytes or floats in [0, 1]. Grey images are
                repeated in three channels.
        """
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"images must be (n, 1 or 3, height, width), got shape {tuple(images.shape)}"
            )
        values = images.float()
        if images.dtype != torch.uint8:  # round to 8 bits, as an image file would
            values = (values.clamp(0, 1) * 255).round()
        return self.features((resize_to_inception(values.expand(-1, 3, -1, -1)) - 128) / 128)

    def features(self, x: Tensor) -> Tensor:
        """Return the features (n, 2048) of resized and scaled inputs (n, 3, 299, 299)."""
        # TF32 would change the features by 1e-3.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for name, layer in self.named_children():
                x = layer(x)
                if name in ("Conv2d_2b_3x3", "Conv2d_4a_3x3"):
                    x = F.max_pool2d(x, 3, stride=2)
        return x.mean((2, 3))


class Mixed(nn.Module):
    """Parallel branches with concatenated outputs.

    Args:
        width: Input channels.
        *branches: Layers of each branch.
        halve: End every branch with a stride of 2.
    """

    def __init__(self, width: int, *branches: Branch, halve: bool = False) -> None:
        super().__init__()
        self.branches = branches
        for branch in branches:
            inner = width
            for step in branch:
                if isinstance(step, str):  # a pooling layer has no weights
                    continue
                stride, padding = (2, 0) if halve and step is branch[-1] else (1, None)
                layers = step if isinstance(step, list) else [step]
                for name, outer, kernel in layers:
                    self.add_module(
                        name, _convolution(inner, outer, kernel, stride=stride, padding=padding)
                    )
                inner = layers[-1][1]

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for branch in self.branches:
            y = x
            for step in branch:
                y = self._apply_step(step, y)
            outputs.append(y)
        return torch.cat(outputs, 1)

    def _apply_step(self, step: str | Layer | list[Layer], x: Tensor) -> Tensor:
        match step:
            case "average":
                return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
            case "max":
                return F.max_pool2d(x, 3, stride=1, padding=1)
            case "max, halved":
                return F.max_pool2d(x, 3, stride=2)
            case list():
                return torch.cat([self.get_submodule(name)(x) for name, _, _ in step], 1)
        return self.get_submodule(step[0])(x)


def resize_to_inception(images: Tensor) -> Tensor:
    """Resize to 299 x 299 like TensorFlow 1: pixel i is interpolated at i x size / 299."""
    for dim in (3, 2):
        size = images.shape[dim]
        position = torch.arange(SIDE, dtype=torch.float32, device=images.device) * (size / SIDE)
        low = position.long().clamp(max=size - 1)
        share = (position - low).view(-1, *[1] * (3 - dim))
        high = (low + 1).clamp(max=size - 1)
        images = torch.lerp(images.index_select(dim, low), images.index_select(dim, high), share)
    return images


def _convolution(
    inner: int,
    outer: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | None = None,
) -> nn.Sequential:
    """Return a convolution and a ReLU. The default padding keeps the size."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    paddings = (height // 2, width // 2) if padding is None else (padding, padding)
    convolution = nn.Conv2d(inner, outer, (height, width), stride, paddings)
    return nn.Sequential(convolution, nn.ReLU(inplace=True))


def _block_35(pool: int) -> tuple[Branch, ...]:
    return (
        (("branch1x1", 64, 1),),
        (("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5)),
        (("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)),
        ("average", ("branch_pool", pool, 1)),
    )


def _block_17(width: int) -> tuple[Branch, ...]:
    across, down = (1, 7), (7, 1)
    return (
        (("branch1x1", 192, 1),),
        (("branch7x7_1", width, 1), ("branch7x7_2", width, across), ("branch7x7_3", 192, down)),
        (
            ("branch7x7dbl_1", width, 1),
            ("branch7x7dbl_2", width, down),
            ("branch7x7dbl_3", width, across),
            ("branch7x7dbl_4", width, down),
            ("branch7x7dbl_5", 192, across),
        ),
        ("average", ("branch_pool", 192, 1)),
    )


def _block_8(pool: str) -> tuple[Branch, ...]:
    across, down = (1, 3), (3, 1)
    return (
        (("branch1x1", 320, 1),),
        (("branch3x3_1", 384, 1), [("branch3x3_2a", 384, across), ("branch3x3_2b", 384, down)]),
        (
            ("branch3x3dbl_1", 448, 1),
            ("branch3x3dbl_2", 384, 3),
            [("branch3x3dbl_3a", 384, across), ("branch3x3dbl_3b", 384, down)],
        ),
        (pool, ("branch_pool", 192, 1)),
    )


_TO_17: tuple[Branch, ...] = (
    (("branch3x3", 384, 3),),
    (("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)),
    ("max, halved",),
)
_TO_8: tuple[Branch, ...] = (
    (("branch3x3_1", 192, 1), ("branch3x3_2", 320, 3)),
    (
        ("branch7x7x3_1", 192, 1),
        ("branch7x7x3_2", 192, (1, 7)),
        ("branch7x7x3_3", 192, (7, 1)),
        ("branch7x7x3_4", 192, 3),
    ),
    ("max, halved",),
)
