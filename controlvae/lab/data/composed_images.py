"""Images that are put together from layers: rows hold factors, and a table holds the pixels."""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from controlvae.lab.data.dataset import ImageDataset, hash_rows
from controlvae.lab.data.room_renderer import geometry_index


@dataclass(frozen=True)
class LayerTable:
    """Layers from which 3D Shapes is composed. See `room_renderer.render_layers`.

    Attributes:
        layers: (geometries, layers, pixels) int16, in parts of a grey level.
        parts: Number of parts.
        channels: Layer of red, green and blue for each hue, (hues, 3) uint8.
    """

    layers: Tensor
    parts: int
    channels: Tensor

    # First layers of sky, floor, wall and object.
    FIRST_LAYERS = (0, 3, 9, 15)

    def to(self, device: torch.device) -> "LayerTable":
        """Return the table on the device."""
        return replace(self, layers=self.layers.to(device), channels=self.channels.to(device))

    def compose(self, rows: Tensor) -> Tensor:
        """Compose images: uint8, (n, pixels, 3).

        Args:
            rows: Classes of floor hue, wall hue, object hue, scale, shape and orientation, (n, 6).
        """
        factors = rows.long()
        geometry = geometry_index(*factors[:, 3:].unbind(1)).unsqueeze(1)
        total = self.layers[geometry, torch.arange(3, device=rows.device)].int()
        for part, first in enumerate(self.FIRST_LAYERS[1:]):
            total += self.layers[geometry, first + self.channels[factors[:, part]].long()]
        levels = (total + self.parts // 2) // self.parts
        return levels.clamp(0, 255).byte().movedim(1, 2)


@dataclass(frozen=True)
class ComposedImages(ImageDataset):
    """Colour images of which only the factors are stored, six bytes each.

    All of 3D Shapes takes 3 MB and a table of 83 MB instead of 5.9 GB. Images are integers before
    they are scaled, so every device composes the same.
    """

    table: LayerTable | None = field(default=None)
    version: str = ""

    def decode(self, rows: Tensor) -> Tensor:
        """Compose images of the factors in these rows: floats in [0, 1], channels first."""
        channels, height, width = self.shape
        pixels = self.table_on(rows.device).compose(rows).view(-1, height, width, channels)
        return pixels.permute(0, 3, 1, 2).float() / 255

    def table_on(self, device: torch.device) -> LayerTable:
        """Return the table, which is copied if the data set was not moved to the device."""
        if self.table is None:
            raise ValueError("images of 3D Shapes need their table of layers")
        return self.table.to(device)

    def fingerprint(self) -> str:
        """Return a digest of the size, the shape, three images' factors and the renderer."""
        return hash_rows(f"{len(self)} {self.shape} {self.version}", self.rows)

    def to(self, device: torch.device) -> Self:
        """Return the data set with its factors and its table on the device."""
        return replace(self, rows=self.rows.to(device), table=self.table_on(device))
