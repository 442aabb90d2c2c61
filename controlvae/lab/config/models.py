"""Settings of the networks that a run can train.

Each class is named after its module in `controlvae.lab.models` plus `Config`. `type_name` is its
name in JSON and on the command line, without the suffix.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from controlvae.lab.config.custom import CustomModel
from controlvae.lab.config.validation import MAX_LAYERS, check_choices, require, require_width


@dataclass(frozen=True)
class ConvVAEConfig:
    """The network of the paper's appendix for 2D Shapes: stride-2 convolutions and their mirror.

    Attributes:
        latents: The number of latents.
        channels: The output channels of each stride-2 convolution of the encoder.
        hidden: The width of the fully connected layer after the convolutions.
        dense: The widths of further layers before the latents, as in Burgess et al.'s network.
        initial: The initialisation of weights. "normal" is N(0, 0.02), as in the public FactorVAE
            code.
    """

    type_name: ClassVar[str] = "ConvVAE"

    latents: int = 10
    channels: tuple[int, ...] = (32, 32, 64, 64)
    hidden: int = 256
    dense: tuple[int, ...] = ()
    initial: Literal["kaiming", "normal"] = "kaiming"

    def __post_init__(self) -> None:
        _check_convolutions(self)
        check_choices(self)
        require_width(self, "hidden", "dense")


@dataclass(frozen=True)
class ImageVAEConfig:
    """The network of the paper's appendix for photographs: stride-2 convolutions with batch norm.

    Attributes:
        latents: The number of latents.
        channels: The output channels of each stride-2 convolution of the encoder.
    """

    type_name: ClassVar[str] = "ImageVAE"

    latents: int = 100
    channels: tuple[int, ...] = (32, 32, 64, 64, 256)

    def __post_init__(self) -> None:
        _check_convolutions(self)


@dataclass(frozen=True)
class TextVAEConfig:
    """The network of the paper's appendix for text: an LSTM encoder and a Transformer decoder.

    Attributes:
        latents: The number of latents.
        width: The width of token embeddings and hidden states.
        encoder: The kind of encoder.
        decoder: The kind of decoder.
        blocks: The number of Transformer blocks.
        heads: The number of attention heads.
        inner: The width of the feed-forward layers of a Transformer.
        dropout: The probability of dropping a unit.
    """

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
        require_width(self, "latents", "width", "blocks", "heads", "inner")
        require(self.blocks <= MAX_LAYERS, f"blocks must be at most {MAX_LAYERS}")
        check_choices(self)
        require(
            self.width % self.heads == 0,
            f"width must be a multiple of heads, got {self.width} and {self.heads}",
        )
        require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class DialogVAEConfig:
    """The conditional VAE for dialogs: GRUs encode the context, a GRU decodes the response.

    Attributes:
        latents: The number of latents.
        embedding: The width of word embeddings.
        utterance: The width of the two GRUs, one per direction, that encode an utterance.
        context: The width of the GRU over utterances.
        hidden: The width of the decoder and of the layers that predict dialog acts and words.
        labels: The width of the embeddings of topics and dialog acts.
        acts: Predict the dialog act of the response and condition on it (kgCVAE).
    """

    type_name: ClassVar[str] = "DialogVAE"

    latents: int = 200
    embedding: int = 200
    utterance: int = 300
    context: int = 600
    hidden: int = 400
    labels: int = 30
    acts: bool = True

    def __post_init__(self) -> None:
        require_width(self, "latents", "embedding", "utterance", "context", "hidden", "labels")


ModelSettings = ConvVAEConfig | ImageVAEConfig | TextVAEConfig | DialogVAEConfig | CustomModel


def _check_convolutions(settings: ConvVAEConfig | ImageVAEConfig) -> None:
    require(len(settings.channels) > 0, "channels must name at least one layer")
    require_width(settings, "latents", "channels")
