"""Networks of a run to export: an encoder and a decoder with plain layers, on the host.

`export_parts` is the one place that knows the kinds of models.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.errors import UserError
from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.data.text.vocabulary import PAD
from controlvae.lab.models import DialogVAE, TextVAE, build
from controlvae.lab.models.base import VAE
from controlvae.lab.runs.loaded import LoadedRun, select_examples

_EXAMPLES = 5  # in the batch that exported programs are verified with

Moments = tuple[Tensor, Tensor]  # mean and log-variance of q(z|x)


class Encoder(nn.Module):
    """Module x -> (mean, log-variance) of q(z|x).

    Args:
        model: Model that holds the weights.
        encode: Function (model, x) -> (mean, log-variance).
    """

    def __init__(self, model: nn.Module, encode: Callable[[Any, Any], Moments]) -> None:
        super().__init__()
        self.model, self._encode = model, encode

    def forward(self, x: Tensor) -> Moments:
        """Return mean and log-variance of the posterior."""
        return self._encode(self.model, x)


class Decoder(nn.Module):
    """Module z -> mean of p(x|z).

    Args:
        model: Model that holds the weights.
        decode: Function (model, z) -> mean of p(x|z).
    """

    def __init__(self, model: nn.Module, decode: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._decode = model, decode

    def forward(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z)."""
        return self._decode(self.model, z)


class TokenDecoder(nn.Module):
    """Module (z, tokens) -> logits of the token at each place, given z and the tokens before it."""

    def __init__(self, model: TextVAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, tokens: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary)."""
        return self.model.decode(z, tokens)


class Network(NamedTuple):
    """Network to export, with a batch of inputs whose first axis may have any size."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]

    def run(self, count: int) -> list[Tensor]:
        """Return the outputs of the first `count` inputs."""
        with torch.no_grad():
            found = self.module(*self.first(count))
        return list(found) if isinstance(found, tuple) else [found]

    def first(self, count: int) -> list[Tensor]:
        """Return the first `count` rows of each input."""
        return [value[:count] for value in self.inputs.values()]


class ExportParts(NamedTuple):
    """What is exported of a run."""

    model: nn.Module  # with plain layers, on the host, in eval mode
    networks: list[Network]
    input_text: str  # human-readable description of x
    output_text: str  # and of what the decoder returns


def export_parts(run: LoadedRun) -> ExportParts:
    """Return the networks of a run.

    Raises:
        UserError: If models of this kind cannot be exported.
    """
    model: nn.Module = run.model
    if isinstance(model, DialogVAE):
        raise UserError(
            f"{run.folder.path} is a model of dialogs, which cannot be exported: "
            "its decoder needs a context next to z"
        )
    if isinstance(model, VAE):
        return _image_parts(run)
    if isinstance(model, TextVAE):
        return _text_parts(run)
    return custom_parts(run)


def make_parts(
    model: nn.Module,
    x: Tensor,
    encode: Callable[[Any, Any], Moments],
    decode: Callable[[Any, Tensor], Tensor],
    *,
    input_text: str,
    output_text: str,
) -> ExportParts:
    """Return the parts of a model that is given by two functions.

    Args:
        model: Model with plain layers, on the host.
        x: Batch of its inputs.
        encode: Function (model, x) -> (mean, log-variance) of q(z|x).
        decode: Function (model, z) -> mean of p(x|z).
        input_text: Human-readable description of x.
        output_text: Human-readable description of what the decoder returns.
    """
    model = model.eval()
    encoder = Network("encoder", Encoder(model, encode).eval(), {"x": x}, ("mean", "log_variance"))
    z = encoder.run(len(x))[0]
    decoder = Network("decoder", Decoder(model, decode).eval(), {"z": z}, ("x_mean",))
    return ExportParts(model, [encoder, decoder], input_text, output_text)


def custom_parts(run: LoadedRun) -> ExportParts:
    """Return the parts of a user-supplied model; without programs if it returns its losses only."""
    vae = run.vae.with_module(copy.deepcopy(run.model).cpu().eval())
    if vae.form != "encode":
        return ExportParts(vae.module, [], "batches as its data set returns them", "its losses")
    x = _example_inputs(run)
    shape = ", ".join(map(str, x.shape[1:]))
    return make_parts(
        vae.module,
        x,
        lambda model, x: _moments(vae.with_module(model).posterior(x)),
        lambda model, z: vae.with_module(model).decode_mean(z),
        input_text=f"examples as the model was trained on them, {_dtype_name(x)} (batch, {shape})",
        output_text=_output_text(vae),
    )


def _moments(posterior: Posterior) -> Moments:
    return posterior.mean, posterior.log_variance


def _output_text(vae: CustomVAE) -> str:
    if vae.likelihood == "categorical":
        return "logits of the classes"
    return "the mean of p(x|z)"


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _image_parts(run: LoadedRun) -> ExportParts:
    shape = ", ".join(map(str, run.shape))
    return make_parts(
        _plain_model(run),
        _example_inputs(run),
        lambda model, x: _moments(model.encode(x)),
        lambda model, z: torch.sigmoid(model.decode(z)),
        input_text=f"images in [0, 1], float32 (batch, {shape})",
        output_text=f"the mean of p(x|z), images in [0, 1], float32 (batch, {shape})",
    )


def _text_parts(run: LoadedRun) -> ExportParts:
    """Return the parts of a model of sentences.

    torch's LSTM fixes the length, so all sentences are padded to the longest of the training set.
    """
    model, length = _plain_model(run), run.shape[0]
    assert isinstance(model, TextVAE)
    tokens = _example_inputs(run)
    moments = Encoder(model, lambda model, x: _moments(model.encode(x)))
    encoder = Network("encoder", moments.eval(), {"x": tokens}, ("mean", "log_variance"))
    inputs = {"z": encoder.run(len(tokens))[0], "tokens": tokens}
    decoder = Network("decoder", TokenDecoder(model).eval(), inputs, ("logits",))
    return ExportParts(
        model,
        [encoder, decoder],
        f"token ids, int64 (batch, {length}), which end with EOS and are padded with {PAD}",
        f"logits, float32 (batch, {length}, vocabulary), of the token at each place given z and "
        "the tokens before it",
    )


def _plain_model(run: LoadedRun) -> nn.Module:
    """Return a copy of a built-in model whose layers are torch's own."""
    model = build(run.experiment, run.examples)
    model.load_state_dict({name: value.cpu() for name, value in run.model.state_dict().items()})
    return model.eval()


def _example_inputs(run: LoadedRun) -> Tensor:
    """Return a batch of the run's examples, or random ones if its data is missing."""
    if isinstance(run.model, TextVAE):
        if not len(run.examples):
            return torch.randint(PAD + 1, len(run.examples.vocabulary), (_EXAMPLES, run.shape[0]))  # type: ignore[attr-defined]
        x = run.examples.batch(select_examples(run, _EXAMPLES)).cpu()
        x = F.pad(x, (0, run.shape[0] - x.shape[1]), value=PAD)
    elif not len(run.examples):
        return torch.rand(_EXAMPLES, *run.shape)
    else:
        x = run.examples.batch(select_examples(run, _EXAMPLES))
    if not isinstance(x, Tensor):
        raise UserError(f"only inputs of one tensor can be exported, got {type(x).__name__}")
    return x.cpu()[torch.arange(_EXAMPLES) % len(x)]  # small data sets are repeated
