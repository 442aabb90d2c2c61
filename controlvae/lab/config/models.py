"""The networks a run may train, as settings."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from controlvae.lab.config.validation import check_choices, require


@dataclass(frozen=True)
class ConvVAEConfig:
    """The appendix network: stride-2 convolutions down to a small map, one hidden layer, and their mirror image.

    `dense` adds hidden layers between that one and the latents, as in Burgess et al.'s network.
    """

    type_name: ClassVar[str] = "ConvVAE"

    latents: int = 10
    channels: tuple[int, ...] = (32, 32, 64, 64)
    hidden: int = 256
    dense: tuple[int, ...] = ()
    initial: Literal["kaiming", "normal"] = (
        "kaiming"  # normal: N(0, 0.02), as the FactorVAE code in use has it
    )

    def __post_init__(self) -> None:
        _check_network(self.latents, self.channels)
        check_choices(self)
        require(self.hidden > 0, f"hidden must be positive, got {self.hidden}")
        require(
            all(width > 0 for width in self.dense),
            f"dense must be positive widths, got {self.dense}",
        )


@dataclass(frozen=True)
class ImageVAEConfig:
    """The appendix network for photographs: stride-2 convolutions with batch norm down to a small map, and back."""

    type_name: ClassVar[str] = "ImageVAE"

    latents: int = 100
    channels: tuple[int, ...] = (32, 32, 64, 64, 256)

    def __post_init__(self) -> None:
        _check_network(self.latents, self.channels)


@dataclass(frozen=True)
class TextVAEConfig:
    """The appendix network for text: an LSTM reads, a Transformer writes; or the other way round."""

    type_name: ClassVar[str] = "TextVAE"

    latents: int = 64
    width: int = 256
    encoder: Literal["lstm", "transformer"] = "lstm"
    decoder: Literal["lstm", "transformer"] = "transformer"
    blocks: int = 3
    heads: int = 8
    inner: int = 1024
    dropout: float = 0.2

    def __post_init__(self) -> None:
        for name in ("latents", "width", "blocks", "heads", "inner"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        check_choices(self)
        require(
            self.width % self.heads == 0,
            f"width must be a multiple of heads, got {self.width} and {self.heads}",
        )
        require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class DialogVAEConfig:
    """The conditional VAE for dialogs: GRUs read the utterances and the context, a GRU writes the response."""

    type_name: ClassVar[str] = "DialogVAE"

    latents: int = 200
    embedding: int = 200
    utterance: int = 300  # width of the GRUs that read an utterance, one each way
    context: int = 600  # width of the GRU over utterances
    hidden: int = 400  # width of the decoder and of the layers that guess acts and words
    labels: int = 30  # size of a topic and of an act
    acts: bool = True  # whether the response's dialog act is guessed and built on (kgCVAE)

    def __post_init__(self) -> None:
        for name in ("latents", "embedding", "utterance", "context", "hidden", "labels"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")


ModelSettings = ConvVAEConfig | ImageVAEConfig | TextVAEConfig | DialogVAEConfig


def _check_network(latents: int, channels: tuple[int, ...]) -> None:
    require(latents > 0, f"latents must be positive, got {latents}")
    require(len(channels) > 0, "channels must name at least one layer")
    require(
        all(width > 0 for width in channels),
        f"channels must be positive widths, one per layer, got {channels}",
    )
