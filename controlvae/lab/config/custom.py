"""Settings that describe user-supplied models, data and optimisers.

They name the user's code and what was found in it. The code itself is never stored.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from controlvae.lab.config.data import DataSettings
from controlvae.lab.config.validation import check_choices, require

ModelForm = Literal["encode", "terms", "losses"]
DecoderOutput = Literal["logits", "probabilities", "mean", "distribution", "own"]
DataKind = Literal["arrays", "dataset", "stream"]


@dataclass(frozen=True)
class CustomModel:
    """A user-supplied `nn.Module`.

    Attributes:
        code: Where the model is defined, such as `my_vae.py:VAE`.
        form: How it is called: "encode" and decode, "terms(batch, noise)", or a `forward` that
            returns its "losses".
        latents: The number of values of KL in a line of the log.
        latent_shape: The shape of z without the batch. Empty if the model does not show z.
        output: What `decode` returns.
        parameters: The number of trained values.
        structure: A digest of the names and shapes of all weights.
        reconstruction_scale: A factor of the model's own reconstruction. It makes the sum over an
            example of a mean.
    """

    type_name: ClassVar[str] = "CustomModel"

    code: str
    form: ModelForm = "encode"
    latents: int = 1
    latent_shape: tuple[int, ...] = ()
    output: DecoderOutput = "own"
    parameters: int = 0
    structure: str = ""
    reconstruction_scale: float = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        require(self.latents > 0, f"latents must be positive, got {self.latents}")
        scale = self.reconstruction_scale
        require(0 < scale < 1e12, f"reconstruction_scale must be positive, got {scale}")


@dataclass(frozen=True)
class CustomData(DataSettings):
    """User-supplied data that was passed from Python.

    Attributes:
        source: What was passed, in words.
        kind: Arrays in memory, a data set with indices, or a stream without.
        examples: The number of examples. None for a stream.
        shape: The shape of one example that the model encodes.
        pixels: The range of pixel values, if the examples are images.
    """

    source: str
    kind: DataKind = "arrays"
    examples: int | None = None
    shape: tuple[int, ...] = ()
    pixels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_choices(self)
        require(
            len(self.pixels) in (0, 2), f"pixels must be a lowest and a highest value, got {self}"
        )


@dataclass(frozen=True)
class CustomOptimiser:
    """An optimiser of `torch.optim`, or one that a user's function returns.

    Attributes:
        name: The class or function, such as `torch.optim.AdamW`.
        rate: The learning rate that a class is called with. None for a function, which sets it.
        scheduler: The function that returns the learning-rate scheduler, or empty.
        clip: Largest norm of the gradient over all weights, or None for no clipping.
    """

    name: str
    rate: float | None = None
    scheduler: str = ""
    clip: float | None = None

    def __post_init__(self) -> None:
        require(
            self.rate is None or self.rate > 0, f"learning rate must be positive, got {self.rate}"
        )
        require(self.clip is None or self.clip > 0, f"clip must be positive, got {self.clip}")
