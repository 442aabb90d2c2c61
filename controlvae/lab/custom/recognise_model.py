"""Recognising a user-supplied model, and checking it with one batch before training starts."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from controlvae.distributions import Posterior
from controlvae.errors import UserError
from controlvae.lab.config.custom import CustomModel, DecoderOutput, ModelForm
from controlvae.lab.custom.adapter import (
    CustomLikelihood,
    CustomVAE,
    as_posterior,
    call_forward,
    is_pythae,
)
from controlvae.lab.custom.batches import (
    cast_batch,
    describe,
    select_input,
)
from controlvae.lab.custom.checks import (
    check_decoded,
    check_losses,
    check_module,
    check_posterior,
    explain_failures,
)
from controlvae.lab.objectives.likelihood import Likelihood, check_likelihood
from controlvae.lab.ranks.gradients import keep_buffers

AnyLikelihood = Likelihood | CustomLikelihood
_LOSS_NAMES = (("recon_loss", "reg_loss"), ("reconstruction", "kl"), ("loss", "kl"))
_EXPECTED = (
    "give it encode(x), which returns (mean, log_variance), and decode(z); or terms(batch, noise), "
    "which returns reconstruction and kl per example; or a forward that returns loss and kl"
)
_FAR_CODE = 1e4  # standard deviations of the prior


def recognise_model(
    module: nn.Module,
    batch: Any,
    likelihood: AnyLikelihood | None = None,
    inputs: Any = None,
    note: Callable[[str], None] = lambda line: None,
) -> CustomVAE:
    """Return a model behind the lab's interface, after checking it with one batch.

    Args:
        module: The user's model, on the device that it is trained on.
        batch: A batch as the data returns it, on the same device.
        likelihood: Likelihood of the reconstruction. None infers it from the data.
        inputs: Key, position or function that selects what `encode` takes from a batch.
        note: Receives what was inferred.

    Raises:
        UserError: If the model has none of the accepted forms, or its losses cannot be trained.
    """
    form = _find_form(module)
    vae = CustomVAE(module, form, "own", "own", inputs)
    batch = cast_batch(batch, vae.dtype)
    with explain_failures(module, batch), keep_buffers(module), torch.random.fork_rng(devices=[]):
        if form == "encode":
            x = _input_tensor(batch, inputs)
            vae = CustomVAE(module, form, *_infer_likelihood(vae, x, likelihood, note), inputs)
            posterior = as_posterior(vae._call_encode(x))
            mean = posterior.mean if isinstance(posterior, Posterior) else posterior.sample()
            check_posterior(posterior, mean, x)
            vae.latent_shape = tuple(mean.shape[1:])
            vae.has_gaussian_posterior = isinstance(posterior, Posterior)
            check_decoded(vae, mean, x)
        elif form == "losses":
            vae.loss_names = _find_losses(module, call_forward(module, batch))
        if form != "encode" and likelihood is not None:
            note(f"likelihood={likelihood!r} is not used: the model computes its own loss")
        check_losses(vae, batch)
    return vae


def describe_model(vae: CustomVAE, code: str, logged_latents: int) -> CustomModel:
    """Return the settings that describe a model in a run folder.

    Args:
        vae: The recognised model.
        code: Where it is defined.
        logged_latents: Number of values of KL in a line of the log.
    """
    parameters = sum(p.numel() for p in vae.module.parameters() if p.requires_grad)
    return CustomModel(
        code=code,
        form=vae.form,
        latents=logged_latents,
        latent_shape=vae.latent_shape,
        output=vae.output,
        parameters=parameters,
        structure=digest_structure(vae.module),
    )


def digest_structure(module: nn.Module) -> str:
    """Return a digest of the names, shapes and types of all weights and buffers."""
    lines = [f"{name} {tuple(v.shape)} {v.dtype}" for name, v in module.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def code_location(model: Any) -> str:
    """Return where a model's class or function is defined: `my_vae.py:VAE`, `package.module:VAE`."""
    kind = model if inspect.isclass(model) or inspect.isfunction(model) else type(model)
    name = getattr(kind, "__qualname__", type(model).__name__)
    module = getattr(kind, "__module__", "") or ""
    if module in ("__main__", "__mp_main__"):
        try:
            return f"{Path(inspect.getfile(kind)).name}:{name}"
        except (TypeError, OSError):  # typed into a notebook or a shell
            return f"notebook:{name}"
    return f"{module}:{name}"


def _find_form(module: nn.Module) -> ModelForm:
    if not isinstance(module, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {describe(module)}")
    check_module(module)
    if callable(getattr(module, "terms", None)):
        return "terms"
    if is_pythae(module):
        return "encode" if type(module).__name__ in ("VAE", "BetaVAE") else "losses"
    for encode, decode in (("encode", "decode"), ("encoder", "decoder")):
        if callable(getattr(module, encode, None)) and callable(getattr(module, decode, None)):
            return "encode"
    return "losses"


def _find_losses(module: nn.Module, output: Any) -> tuple[str, str]:
    """Return the names of reconstruction loss and KL in what `forward` returned."""
    for pair in _LOSS_NAMES:
        entries = [
            output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
            for name in pair
        ]
        if all(isinstance(entry, Tensor) for entry in entries):
            return pair
    raise UserError(
        f"{type(module).__name__} cannot be trained as it is: its forward returned "
        f"{describe(output)}; {_EXPECTED}"
    )


def _input_tensor(batch: Any, inputs: Any) -> Tensor:
    x = select_input(batch, inputs)
    if not isinstance(x, Tensor):
        raise UserError(
            f"encode(x) takes a tensor, but the data gives {describe(x)}; "
            "encode text as token ids, or choose another part of a batch with inputs="
        )
    return x


def _infer_likelihood(
    vae: CustomVAE, x: Tensor, likelihood: AnyLikelihood | None, note: Callable[[str], None]
) -> tuple[AnyLikelihood, DecoderOutput]:
    """Return the likelihood, and what the decoder's output means."""
    with torch.no_grad():
        posterior = as_posterior(vae._call_encode(x))
        z = posterior.mean if isinstance(posterior, Posterior) else posterior.sample()
        decoded = vae._call_decode(z)
    if isinstance(decoded, Distribution):
        return "own", "distribution"
    if callable(likelihood):
        return likelihood, "own"
    if likelihood is None and is_pythae(vae.module):
        return _pythae_likelihood(vae.module)
    if likelihood is None:
        likelihood, reason = _guess_likelihood(x)
        note(f"likelihood: {likelihood}, because {reason}; pass likelihood= to choose another")
    _check_likelihood(likelihood)
    if likelihood == "bernoulli":
        gaussian = isinstance(posterior, Posterior)  # for which any tensor is a valid code
        if _are_probabilities(decoded) and (not gaussian or _stays_in_range(vae, z)):
            note("decode(z) returns probabilities: all of its values lie in [0, 1]")
            return likelihood, "probabilities"
        return likelihood, "logits"
    return likelihood, "logits" if likelihood == "categorical" else "mean"


def _are_probabilities(decoded: Tensor) -> bool:
    return bool(decoded.min() >= 0 and decoded.max() <= 1)


@torch.no_grad()
def _stays_in_range(vae: CustomVAE, mean: Tensor) -> bool:
    """Return whether the decoder's values lie in [0, 1] for codes far from 0, too.

    Logits of a new network are small and may all lie in [0, 1] by chance. Far from 0 they do not,
    while the outputs of a sigmoid do.
    """
    codes = torch.linspace(-_FAR_CODE, _FAR_CODE, mean.numel()).to(mean).view_as(mean)
    return _are_probabilities(vae._call_decode(codes))


def _check_likelihood(likelihood: Any) -> None:
    try:
        check_likelihood(likelihood)
    except ValueError:
        known = False
    else:
        known = likelihood not in ("tokens", "own")  # those of built-in models
    if not known:
        raise UserError(
            "likelihood must be bernoulli, squared-error, categorical (class numbers and tokens), "
            f"lab.Gaussian(...) or a function of the decoder's output and x, got {likelihood!r}"
        )


def _guess_likelihood(x: Tensor) -> tuple[Likelihood, str]:
    if not x.is_floating_point():
        return "categorical", f"the data is {str(x.dtype).removeprefix('torch.')}"
    if bool(((x == 0) | (x == 1)).all()):
        return "bernoulli", "the data is zeros and ones"
    return "squared-error", "the data is continuous"


def _pythae_likelihood(module: nn.Module) -> tuple[CustomLikelihood, DecoderOutput]:
    """Return the reconstruction loss that a pythae model is configured with."""
    if module.model_config.reconstruction_loss == "bce":  # type: ignore[union-attr]
        return _cross_entropy, "probabilities"
    return _half_squared_error, "mean"


def _cross_entropy(decoded: Tensor, x: Tensor) -> Tensor:
    loss = nn.functional.binary_cross_entropy(decoded.flatten(1), x.flatten(1), reduction="none")
    return loss.sum(1)


def _half_squared_error(decoded: Tensor, x: Tensor) -> Tensor:
    return 0.5 * (decoded.flatten(1) - x.flatten(1)).square().sum(1)
