"""Launch of the Adam kernel."""

import math

from torch import Tensor

from controlvae.lab.engines.stacked.kernels.optimiser import adam_kernel


def adam_step(
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    operand: Tensor,
    partials: Tensor,
    table: Tensor,
    counter: Tensor,
    rate: Tensor,
    block: int,
    *,
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
) -> None:
    """Apply one Adam step to all models, in place, from their partial gradients.

    Args:
        weight: (models, parameters).
        first: First moments, (models, parameters).
        second: Second moments, (models, parameters).
        operand: Weights in the data type of the matrix products: `weight` itself, or a rounded
            copy that is updated here.
        partials: Partial gradients, (models, total size).
        table: Partial gradients of each block of parameters, (blocks, 4); see `adam_kernel`.
        counter: Steps taken before this one, a number on the device.
        rate: Learning rate, a float32 number on the device.
        block: Parameters per block.
        beta1: Decay of the first moments.
        beta2: Decay of the second moments.
        epsilon: Added to the root of the second moments.
    """
    models, parameters = weight.shape
    adam_kernel[(len(table), models)](
        weight,
        first,
        second,
        operand,
        partials,
        table,
        counter,
        rate,
        parameters,
        partials.shape[1],
        BETA1=beta1,
        BETA2=beta2,
        LOG_BETA1=math.log(beta1) if beta1 else -math.inf,
        LOG_BETA2=math.log(beta2) if beta2 else -math.inf,
        EPSILON=epsilon,
        BLOCK=block,
        ROUNDED=operand is not weight,
    )
