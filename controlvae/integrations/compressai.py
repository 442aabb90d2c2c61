"""Integration with CompressAI: a rate-distortion loss with a target in bits per pixel.

>>> criterion = TargetRateLoss(0.5)                    # instead of RateDistortionLoss(lmbda=0.01)
>>> loss = criterion(net(images), images)["loss"]

λ multiplies the distortion, so the rate grows with it: the law must be of `direction="inverse"`.
The loss needs the network's `likelihoods` and `x_hat`, and CompressAI only for MS-SSIM.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import require_packages
from controlvae.laws import Auto, Law

_INITIAL_LAMBDA = 0.01  # default of CompressAI
# Distortions of CompressAI: squared error of 8-bit values, and 1 - MS-SSIM.
_SQUARED_RANGE = 255**2


class TargetRateLoss(nn.Module):
    """Rate-distortion loss λ·D + R that holds the rate R at a target by moving λ.

    It returns the dictionary of CompressAI's `RateDistortionLoss`, with `lmbda` added. λ moves in
    calls that record gradients. Calls under `torch.no_grad()`, such as those of a validation
    epoch, leave it unchanged. The controller is part of `state_dict()`.

    Args:
        target: Bits per pixel, or a law of `direction="inverse"` with such a target.
        metric: `"mse"` or `"ms-ssim"`, as in CompressAI.
        accumulate: Micro-batches per optimiser step.
    """

    def __init__(
        self,
        target: float | Law,
        metric: Literal["mse", "ms-ssim"] = "mse",
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        law = target if isinstance(target, Law) else _make_law(target)
        if getattr(law, "direction", "inverse") != "inverse":
            raise UserError(
                f'law must have direction="inverse", because the rate grows with lambda; got {law}'
            )
        if metric not in ("mse", "ms-ssim"):
            raise UserError(f"metric must be 'mse' or 'ms-ssim', got {metric!r}")
        self.metric = metric
        self.control = Controller(law, accumulate=accumulate)

    def forward(self, output: Mapping[str, Any], target: Tensor) -> dict[str, Tensor]:
        """Return the loss and its terms, and move λ if gradients are recorded.

        Args:
            output: Output of a CompressAI model: `x_hat`, and `likelihoods` by name.
            target: Images in [0, 1]: (batch, channels, height, width).
        """
        batch, _, height, width = target.shape
        likelihoods = output["likelihoods"].values()
        nats = sum((-values.log().sum() for values in likelihoods), start=target.new_zeros(()))
        rate = nats / (math.log(2) * batch * height * width)
        terms, distortion = self._distortion(output["x_hat"], target)
        if rate.requires_grad:
            lmbda = self.control.step(rate)
        else:
            lmbda = torch.as_tensor(self.control.beta).to(rate)
        return {"bpp_loss": rate, **terms, "loss": lmbda * distortion + rate, "lmbda": lmbda}

    def _distortion(self, decoded: Tensor, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if self.metric == "mse":
            mse = F.mse_loss(decoded, images)
            return {"mse_loss": mse}, _SQUARED_RANGE * mse
        with require_packages("compressai"):
            from pytorch_msssim import ms_ssim
        similarity = ms_ssim(decoded, images, data_range=1)
        return {"ms_ssim_loss": similarity}, 1 - similarity

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the controller, for `state_dict()`."""
        return self.control.state_dict()

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the controller, for `load_state_dict()`."""
        self.control.load_state_dict(state)


def _make_law(target: float) -> Law:
    return Auto(target, direction="inverse", beta_init=_INITIAL_LAMBDA)
