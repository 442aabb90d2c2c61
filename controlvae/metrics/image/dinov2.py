"""DINOv2 vision transformer, whose features judge images of any kind: the input of FD-DINOv2.

Inception was trained on ImageNet's classes, and its distances disagree with people (Stein et al.,
*Exposing flaws of generative model evaluation metrics and their unfair treatment of diffusion
models*, 2023). They recommend the Fréchet distance of these features: `fid(a, b)` takes them as it
takes any.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 224
PATCH = 14
RESIZE = "bicubic to 224x224 with antialiasing, from 8-bit values (as PIL does)"
_HEAD_WIDTH = 64
_POSITION_OFFSET = 0.1  # of the published code, where it resizes the positions
_MEAN, _SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class DINOv2(nn.Module):
    """Network that maps images to the class token of DINOv2, (n, width).

    Oquab et al., *DINOv2: learning robust visual features without supervision*, 2023. Layers have
    the names of the published files, from which the sizes are read: small, base, large and giant,
    with or without registers. `controlvae.lab.evaluation.dinov2_weights.load_dinov2` reads one.

    Args:
        weights: Tensors of a published file, by name.
        extractor: Description of the weights, for reports.
    """

    def __init__(self, weights: Mapping[str, Tensor], extractor: str = "DINOv2") -> None:
        super().__init__()
        self.extractor = extractor
        width = weights["cls_token"].shape[-1]
        blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros_like(weights["pos_embed"]))
        registers = weights.get("register_tokens")
        self.register_tokens = None if registers is None else nn.Parameter(registers.clone())
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, PATCH, stride=PATCH)})
        self.blocks = nn.ModuleList(
            _Block(width, _hidden_width(weights), "blocks.0.mlp.w12.weight" in weights)
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.load_state_dict({k: v for k, v in weights.items() if k != "mask_token"})
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images, (n, width).

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
        # In two passes with 8-bit values between them, as PIL does.
        resized = values.expand(-1, 3, -1, -1)
        for size in ((resized.shape[2], SIDE), (SIDE, SIDE)):
            resized = F.interpolate(resized, size, mode="bicubic", antialias=True)
            resized = resized.clamp(0, 255).round()
        mean, sd = (resized.new_tensor(each).view(3, 1, 1) for each in (_MEAN, _SD))
        return self.features((resized / 255 - mean) / sd)

    def features(self, x: Tensor) -> Tensor:
        """Return the class token of normalised inputs, (n, 3, height, width), (n, width)."""
        patches = self.patch_embed["proj"](x)
        rows, columns = patches.shape[2:]
        tokens = torch.cat(
            [self.cls_token.expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)], dim=1
        )
        tokens = tokens + self._positions(rows, columns)
        if self.register_tokens is not None:
            registers = self.register_tokens.expand(len(x), -1, -1)
            tokens = torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return the position embeddings for a grid of patches, resized from the trained one."""
        side = round((self.pos_embed.shape[1] - 1) ** 0.5)
        if (rows, columns) == (side, side):
            return self.pos_embed
        grid = self.pos_embed[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        # Files with registers were trained without the offset and with antialiasing.
        if self.register_tokens is not None:
            resized = F.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)
        else:
            scale = tuple((count + _POSITION_OFFSET) / side for count in (rows, columns))
            resized = F.interpolate(grid, scale_factor=scale, mode="bicubic")
        return torch.cat([self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)


class _Block(nn.Module):
    """Attention and a feed-forward network, each scaled and added to its input."""

    def __init__(self, width: int, hidden: int, gated: bool) -> None:
        super().__init__()
        self.heads = max(1, width // _HEAD_WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)}
        )
        self.ls1, self.ls2 = (
            nn.ParameterDict({"gamma": nn.Parameter(torch.ones(width))}) for _ in range(2)
        )
        names = ("w12", "w3") if gated else ("fc1", "fc2")
        layers = [nn.Linear(width, 2 * hidden if gated else hidden), nn.Linear(hidden, width)]
        self.mlp = nn.ModuleDict(dict(zip(names, layers, strict=True)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1["gamma"] * self._attend(self.norm1(x))
        return x + self.ls2["gamma"] * self._feed_forward(self.norm2(x))

    def _attend(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        heads = self.attn["qkv"](x).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0))
        return self.attn["proj"](mixed.transpose(1, 2).reshape(count, tokens, width))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if "w12" in self.mlp:
            gate, value = self.mlp["w12"](x).chunk(2, dim=-1)
            return self.mlp["w3"](F.silu(gate) * value)
        return self.mlp["fc2"](F.gelu(self.mlp["fc1"](x)))


def _hidden_width(weights: Mapping[str, Tensor]) -> int:
    gated = weights.get("blocks.0.mlp.w3.weight")
    return (weights["blocks.0.mlp.fc2.weight"] if gated is None else gated).shape[1]
