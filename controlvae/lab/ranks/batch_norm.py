"""Batch norm over the whole batch of all ranks, on any device.

torch's `SyncBatchNorm` refuses tensors in host memory. This one computes the same with one
collective operation forward and one backward.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from controlvae.lab.ranks.share import BatchShare


class RankBatchNorm(nn.Module):
    """Batch norm whose mean and variance are those of the rows of all ranks.

    It shares parameters, buffers and their names with the layer that it replaces, so state dicts
    are interchangeable.

    Args:
        layer: Layer to replace.
        share: Share of this rank in the batch.
    """

    def __init__(self, layer: _BatchNorm, share: BatchShare) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.momentum = layer.eps, layer.momentum
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.track_running_stats = layer.track_running_stats
        self.training = layer.training
        self.share = share
        object.__setattr__(self, "layer", layer)  # hidden: its entries would come twice

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised values in the shape of `x`, (batch, channels, ...)."""
        mean, var = getattr(self, "running_mean", None), getattr(self, "running_var", None)
        if not self.training:
            return F.batch_norm(x, mean, var, self.weight, self.bias, mean is None, 0.0, self.eps)
        normalised, batch_mean, batch_var, count = _Normalise.apply(x, self.eps, self.share)
        if mean is not None and var is not None:
            unbiased = batch_var * (count / (count - 1).clamp(min=1))
            self._update_running(mean, var, batch_mean, unbiased)
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        if self.weight is not None:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(x.dtype)

    @torch.no_grad()
    def _update_running(
        self, mean: Tensor, var: Tensor, batch_mean: Tensor, batch_var: Tensor
    ) -> None:
        """Move the running statistics towards those of a batch, whose variance is unbiased."""
        self.num_batches_tracked.add_(1)  # type: ignore[operator]
        rate = self.momentum
        if rate is None:  # a cumulative average
            rate = 1.0 / float(self.num_batches_tracked)  # type: ignore[arg-type]
        mean.lerp_(batch_mean.to(mean.dtype), rate)
        var.lerp_(batch_var.to(var.dtype), rate)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) with the moments of all ranks' rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, eps: float, share: BatchShare
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [0, *range(2, x.dim())]
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        count = 0.0 if share.is_idle else x.numel() / x.shape[1]
        # Moments are merged in float64 around each rank's own mean, which does not cancel.
        var, mean = (each.double() for each in torch.var_mean(exact, axes, correction=0))
        counted = torch.full_like(mean[:1], count)
        moments = torch.cat([counted, mean, var]).nan_to_num() * (count > 0)
        table = moments.new_zeros(share.size, len(moments))
        table[share.rank] = moments
        dist.all_reduce(table)
        counts, means, variances = table[:, :1], *table[:, 1:].chunk(2, dim=1)
        total = counts.sum()
        batch_mean = (counts * means).sum(0) / total
        batch_var = (counts * (variances + (means - batch_mean).square())).sum(0) / total
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        inverse = (batch_var + eps).rsqrt().to(exact.dtype).view(shape)
        normalised = (exact - batch_mean.to(exact.dtype).view(shape)) * inverse
        ctx.save_for_backward(normalised, inverse, total.clone())
        ctx.axes, ctx.share, ctx.dtype = axes, share, x.dtype
        ctx.mark_non_differentiable(batch_mean, batch_var, total)
        # A clone, because an activation may work in place on the output.
        return normalised.clone(), batch_mean, batch_var, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        normalised, inverse, total = ctx.saved_tensors
        gradient = gradients[0].to(normalised.dtype)
        if ctx.share.is_idle:
            gradient = torch.zeros_like(gradient)
        sums = torch.stack([gradient.sum(ctx.axes), (gradient * normalised).sum(ctx.axes)]).double()
        dist.all_reduce(sums)
        of_gradient, of_product = (sums / total).to(normalised.dtype).view(2, *inverse.shape)
        dx = (gradient - of_gradient - normalised * of_product) * inverse
        if ctx.share.is_idle:  # its row is not part of the moments
            dx = torch.zeros_like(dx)
        return dx.to(ctx.dtype), None, None


def share_batch_norm(module: nn.Module, share: BatchShare) -> int:
    """Replace the batch norms of a module by ones over all ranks, in place.

    Args:
        module: Network to change.
        share: Share of this rank in the batch.

    Returns:
        The number of layers replaced.
    """
    found = 0
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            # Instance norm has the same base class but no statistics of the batch.
            if isinstance(layer, _BatchNorm) and "BatchNorm" in type(layer).__name__:
                parent._modules[name] = RankBatchNorm(layer, share)
                found += 1
    return found


def restore_batch_norm(module: nn.Module) -> None:
    """Put the layers back that `share_batch_norm` replaced, with their present statistics."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, RankBatchNorm):
                original: nn.Module = layer.layer  # type: ignore[assignment]
                original.train(layer.training)
                original._buffers.update(layer._buffers)
                parent._modules[name] = original
