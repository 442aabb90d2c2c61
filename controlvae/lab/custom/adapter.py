"""User-supplied models behind the interface of the built-in ones."""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.config.custom import DecoderOutput, ModelForm
from controlvae.lab.custom.batches import describe, select_input
from controlvae.lab.custom.half import without_half
from controlvae.lab.custom.likelihoods import class_nll, learn_variance
from controlvae.lab.custom.noise import Noise
from controlvae.lab.objectives.likelihood import Gaussian, Likelihood

# Function from what `decode` returned and x to the loss of each example, (batch,).
CustomLikelihood = Callable[[Any, Tensor], Tensor]
_MAX_LOGGED_LATENTS = 512  # more are logged in groups


class Losses(NamedTuple):
    """Loss terms of a batch in nats."""

    reconstruction: Tensor  # averaged over the batch
    kl: Tensor  # averaged over the batch, summed over latents
    kl_per_latent: Tensor  # averaged over the batch, (groups,)
    other: Tensor | float = 0.0  # further terms of the model, with weight 1


class ExampleLosses(NamedTuple):
    """Loss terms of each example of a batch in nats."""

    reconstruction: Tensor  # (batch,)
    kl: Tensor  # summed over latents, (batch,)
    kl_per_latent: Tensor  # (batch, groups)
    other: Tensor | float = 0.0  # further terms of the model, averaged over the batch


class CustomVAE:
    """A user's module, and how to read it.

    Args:
        module: The user's model.
        form: How the model is called.
        likelihood: Likelihood of the reconstruction, or a function of the decoder's output and x.
        output: What `decode` returns. None until it was found out.
        inputs: Key, position or function that selects what `encode` takes from a batch.
    """

    def __init__(
        self,
        module: nn.Module,
        form: ModelForm,
        likelihood: Likelihood | CustomLikelihood = "own",
        output: DecoderOutput = "own",
        inputs: Any = None,
    ) -> None:
        self.module, self.form, self.output, self.inputs = module, form, output, inputs
        self.likelihood = likelihood
        self.latent_shape: tuple[int, ...] = ()
        self.has_gaussian_posterior = False
        self.loss_names: tuple[str, str] | None = None  # attributes of a `forward`'s output
        self.reconstruction_scale = 1.0  # of a reconstruction that is a mean instead of a sum
        self.allows_half = True  # let the module's own autocast compute in float16
        if isinstance(likelihood, Gaussian) and likelihood.learnt:
            learn_variance(module, likelihood.variance)

    def with_module(self, module: nn.Module) -> "CustomVAE":
        """Return the same way to read another module, such as a copy."""
        other = copy.copy(self)
        other.module = module
        return other

    @property
    def latents(self) -> int:
        """Number of values of z."""
        return math.prod(self.latent_shape) if self.latent_shape else 1

    @property
    def pixel_log_variance(self) -> Tensor | None:
        """Learnt log-variance of p(x|z), or None."""
        return getattr(self.module, "pixel_log_variance", None)

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights."""
        kinds = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return next(kinds, torch.float32)

    def losses(self, batch: Any, noise: Tensor | Noise) -> Losses:
        """Return the loss terms of a batch.

        Args:
            batch: Batch as the data returns it, on the model's device.
            noise: Noise of z, (batch, latents), for a model with `encode`; otherwise a `Noise`.
        """
        if self.form == "encode":
            found = self._encode_losses(select_input(batch, self.inputs), noise)
            means = found.reconstruction.mean(), found.kl.mean(), found.kl_per_latent.mean(0)
            return Losses(*means)
        return as_losses(self._scaled(self.named_terms(batch, noise)))

    def example_losses(self, batch: Any, noise: Tensor | Noise) -> ExampleLosses:
        """Return the loss terms of each example of a batch. See `losses`.

        Raises:
            UserError: If the model returns means over the batch only.
        """
        if self.form == "encode":
            return self._encode_losses(select_input(batch, self.inputs), noise)
        return as_example_losses(self._scaled(self.named_terms(batch, noise)))

    def _scaled(self, terms: dict[str, Any]) -> dict[str, Any]:
        """Return a model's own terms with the reconstruction in nats per example."""
        if self.reconstruction_scale == 1:
            return terms
        scaled = self.reconstruction_scale * terms["reconstruction"]
        return {**terms, "reconstruction": scaled}

    def named_terms(self, batch: Any, noise: Tensor | Noise) -> dict[str, Any]:
        """Return `reconstruction`, `kl` and `other` of a model that computes its own losses.

        Args:
            batch: Batch on the model's device.
            noise: Source of noise for `terms`.
        """
        with self._precision():
            if self.form == "terms":
                terms: Any = self.module.terms
                return name_terms(terms(batch, noise))
            output = call_forward(self.module, batch)
        assert self.loss_names is not None
        reconstruction, kl = (_entry(output, name) for name in self.loss_names)
        return name_terms((reconstruction, kl))

    def _encode_losses(self, x: Tensor, noise: Tensor | Noise) -> ExampleLosses:
        encoded = as_posterior(self._call_encode(x))
        if isinstance(encoded, Posterior):
            latents = encoded.mean.shape[1:]
            drawn = noise.like(encoded.mean) if isinstance(noise, Noise) else noise
            z = encoded.sample(drawn.view(-1, *latents).to(encoded.mean.dtype))
            kl = gaussian_kl(encoded)
        else:
            z = encoded.rsample() if encoded.has_rsample else encoded.sample()
            kl = self._distribution_kl(encoded, z)
        reconstruction = self._nll(self._call_decode(z), x)
        return ExampleLosses(reconstruction, kl.flatten(1).sum(1), group_latents(kl))

    def encode(self, x: Tensor) -> Posterior:
        """Return q(z|x) with flat latents, (batch, latents)."""
        if self.form != "encode":
            raise UserError(
                "this needs a model with encode(x) and decode(z); "
                f"{type(self.module).__name__} returns its losses only"
            )
        posterior = self.posterior(x)
        return Posterior(posterior.mean.flatten(1), posterior.log_variance.flatten(1))

    def posterior(self, x: Tensor) -> Posterior:
        """Return q(z|x) with latents in the model's own shape.

        Raises:
            UserError: If the posterior is not Gaussian.
        """
        encoded = as_posterior(self._call_encode(x))
        if not isinstance(encoded, Posterior):
            raise UserError(
                f"this needs a Gaussian posterior, but encode returned a {type(encoded).__name__}"
            )
        return encoded

    def decode(self, z: Tensor) -> Any:
        """Return what the model's `decode` returns for flat latents, (batch, latents)."""
        return self._call_decode(z.reshape(-1, *self.latent_shape))

    def decode_mean(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z): probabilities, pixels, or the most likely classes."""
        decoded = self.decode(z)
        if isinstance(decoded, Distribution):
            return decoded.mean
        if self.likelihood == "categorical":
            return decoded
        return torch.sigmoid(decoded) if self.output == "logits" else decoded

    def reconstruction(self, z: Tensor, x: Tensor) -> Tensor:
        """Return -log p(x|z) of each example for flat latents: (batch,)."""
        return self._nll(self.decode(z), x)

    def _call_encode(self, x: Tensor) -> Any:
        encode: Any = getattr(self.module, "encode", None) or self.module.encoder
        with self._precision():
            return encode(x)

    def _call_decode(self, z: Tensor) -> Any:
        decode: Any = getattr(self.module, "decode", None) or self.module.decoder
        with self._precision():
            return unwrap_decoded(decode(z))

    def _precision(self) -> AbstractContextManager[None]:
        return nullcontext() if self.allows_half else without_half()

    def _distribution_kl(self, posterior: Distribution, z: Tensor) -> Tensor:
        """Return the KL of each example, (batch, 1), exact where torch knows it."""
        prior = getattr(self.module, "prior", None)
        prior = prior() if callable(prior) and not isinstance(prior, Distribution) else prior
        if prior is None:
            prior = Normal(torch.zeros_like(z), torch.ones_like(z))
            prior = Independent(prior, z.dim() - 1)
        try:
            kl = kl_divergence(posterior, prior)
        except NotImplementedError:
            kl = posterior.log_prob(z) - prior.log_prob(z)
        return kl.reshape(len(z), -1)

    def _nll(self, decoded: Any, x: Tensor) -> Tensor:
        """Return -log p(x|z) of each example from the decoder's output: (batch,)."""
        if isinstance(decoded, Distribution):
            target = x.reshape(*decoded.batch_shape, *decoded.event_shape)
            return -decoded.log_prob(target).reshape(len(x), -1).sum(1)
        if callable(self.likelihood):
            own = self.likelihood(decoded, x)
            return own if self.reconstruction_scale == 1 else self.reconstruction_scale * own
        decoded = decoded.float() if decoded.dtype in (torch.bfloat16, torch.float16) else decoded
        if self.likelihood == "categorical":
            return class_nll(decoded, x)
        return self._value_nll(decoded.flatten(1), x.flatten(1).to(decoded.dtype))

    def _value_nll(self, decoded: Tensor, x: Tensor) -> Tensor:
        match self.likelihood:
            case "bernoulli" if self.output == "probabilities":
                p = decoded.clamp(1e-7, 1 - 1e-7)
                return -(x * p.log() + (1 - x) * torch.log1p(-p)).sum(1)
            case "bernoulli":
                return F.binary_cross_entropy_with_logits(decoded, x, reduction="none").sum(1)
            case "squared-error":
                return (decoded - x).square().sum(1)
            case Gaussian(variance):
                learnt = self.pixel_log_variance
                log_variance = (
                    decoded.new_full((), math.log(variance)) if learnt is None else learnt
                )
                squared = (decoded - x).square().sum(1) * torch.exp(-log_variance)
                return 0.5 * (squared + x.shape[1] * (log_variance + math.log(2 * math.pi)))
        raise UserError(f"likelihood {self.likelihood!r} does not fit a model with decode(z)")


def as_posterior(encoded: Any) -> Posterior | Distribution:
    """Return what `encode` returned as a Gaussian posterior, or as a torch distribution.

    Accepted are (mean, log_variance), a `Posterior`, a `torch.distributions` object, an output with
    `latent_dist` as that of diffusers, and an output with a mean and a log-variance by name.

    Raises:
        UserError: If it is none of these.
    """
    if isinstance(encoded, Posterior):
        return encoded
    encoded = getattr(encoded, "latent_dist", encoded)
    base = encoded.base_dist if isinstance(encoded, Independent) else encoded
    if isinstance(base, Normal):
        return Posterior(base.mean, 2 * base.stddev.log())
    if isinstance(encoded, Distribution):
        return encoded
    pair = _named_pair(encoded)
    if pair is None and isinstance(encoded, list | tuple) and len(encoded) == 2:
        pair = encoded[0], encoded[1]
    if pair is None or not all(isinstance(each, Tensor) for each in pair):
        raise UserError(
            "encode(x) must return (mean, log_variance) or a torch distribution, "
            f"got {describe(encoded)}; return two tensors of the shape of z"
        )
    mean, log_variance = pair
    if mean.shape != log_variance.shape:
        raise UserError(
            "encode(x) must return a mean and a log_variance of one shape, "
            f"got {tuple(mean.shape)} and {tuple(log_variance.shape)}; let both have that of z"
        )
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return Posterior(mean.to(dtype), log_variance.to(dtype))


def _named_pair(encoded: Any) -> tuple[Tensor, Tensor] | None:
    """Return a mean and a log-variance by their usual names, or None."""
    names = (("mean", "log_variance"), ("mean", "logvar"), ("mu", "logvar"), ("mu", "log_var"))
    for mean, log_variance in (*names, ("embedding", "log_covariance")):
        found = _entry(encoded, mean), _entry(encoded, log_variance)
        if isinstance(found[0], Tensor) and isinstance(found[1], Tensor):
            return found
    return None


def _entry(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)


def unwrap_decoded(decoded: Any) -> Any:
    """Return the tensor or distribution in what `decode` returned, such as `output.sample`."""
    if isinstance(decoded, Tensor | Distribution):
        return decoded
    for name in ("sample", "reconstruction", "logits", "recon_x", "x"):
        if isinstance(found := _entry(decoded, name), Tensor):
            return found
    if isinstance(decoded, list | tuple) and decoded and isinstance(decoded[0], Tensor):
        return decoded[0]
    raise UserError(f"decode(z) must return a tensor or a distribution, got {describe(decoded)}")


def call_forward(module: nn.Module, batch: Any) -> Any:
    """Call a module whose `forward` computes its losses, with the batch as keywords if it is one."""
    if is_pythae(module):
        return module({"data": select_input(batch)})
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, list | tuple) else module(batch)


def is_pythae(module: nn.Module) -> bool:
    """Return whether a module is a model of pythae."""
    return any(kind.__module__.startswith("pythae.models") for kind in type(module).__mro__)


def name_terms(terms: Any) -> dict[str, Any]:
    """Return the loss terms in what `terms` or `forward` returned, by name.

    Accepted are (reconstruction, kl), or those names as keys or attributes, with `other` for
    further terms.

    Raises:
        UserError: If one of them is missing.
    """
    names = ("reconstruction", "kl", "other")
    if isinstance(terms, tuple) and not hasattr(terms, "_fields"):
        values = dict(zip(names, terms, strict=False)) if len(terms) <= len(names) else {}
    else:
        values = {name: _entry(terms, name) for name in names}
    if not all(isinstance(values.get(name), Tensor) for name in names[:2]):
        raise UserError(
            "terms(batch, noise) must return reconstruction and kl, one value per example, and "
            f"at most one further loss, got {describe(terms)}"
        )
    if not isinstance(values.get("other"), Tensor | float | int | None):
        raise UserError(
            "the third value of terms(batch, noise) is a further loss and must be a tensor, "
            f"got {describe(values['other'])}"
        )
    return values


def as_losses(values: Mapping[str, Any]) -> Losses:
    """Return named loss terms as means over the batch.

    Each is a value per example, (batch,), or their mean; the KL may have one value per example and
    latent, (batch, latents).
    """
    reconstruction, kl, other = values["reconstruction"], values["kl"], values.get("other")
    if kl.dim() == 0:
        return Losses(reconstruction.mean(), kl, kl.reshape(1), _mean(other))
    per_example = kl.reshape(len(kl), -1)
    grouped = group_latents(kl) if kl.dim() > 1 else per_example
    return Losses(reconstruction.mean(), per_example.sum(1).mean(), grouped.mean(0), _mean(other))


def as_example_losses(values: Mapping[str, Any]) -> ExampleLosses:
    """Return named loss terms of each example.

    Raises:
        UserError: If a term is a mean over the batch.
    """
    reconstruction, kl = values["reconstruction"], values["kl"]
    if reconstruction.dim() != 1 or kl.dim() == 0:
        raise UserError(
            "each example needs its own reconstruction and KL, and this model returns their means; "
            "give it encode(x) and decode(z), or terms(batch, noise) with one value per example"
        )
    per_example = kl.reshape(len(kl), -1)
    grouped = group_latents(kl) if kl.dim() > 1 else per_example
    return ExampleLosses(reconstruction, per_example.sum(1), grouped, _mean(values.get("other")))


def _mean(value: Any) -> Tensor | float:
    if value is None:
        return 0.0
    return value.mean() if isinstance(value, Tensor) else float(value)


def group_latents(kl: Tensor) -> Tensor:
    """Return the KL of each latent, (batch, groups): of each channel if z is an image or sequence.

    Args:
        kl: KL of each value of z, (batch, ...).
    """
    if kl.dim() > 2:
        return kl.flatten(2).sum(2)
    if kl.shape[1] <= _MAX_LOGGED_LATENTS:
        return kl
    return torch.stack([part.sum(1) for part in kl.chunk(_MAX_LOGGED_LATENTS, 1)], dim=1)
