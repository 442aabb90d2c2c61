"""Operations on a stack of models: shapes, grids and launches around the Triton kernels.

Every tensor has the models as its first dimension, and one launch serves all of them.
"""

from controlvae.lab.engines.stacked.ops.compose import compose_images
from controlvae.lab.engines.stacked.ops.conv import conv, conv_transpose, conv_weight_grad
from controlvae.lab.engines.stacked.ops.dense import matmul, split_k_matmul
from controlvae.lab.engines.stacked.ops.norm import batch_statistics, normalise, normalise_backward
from controlvae.lab.engines.stacked.ops.optimiser import adam_step
from controlvae.lab.engines.stacked.ops.unpack import unpack_bits, unpack_bytes

__all__ = [
    "adam_step",
    "batch_statistics",
    "compose_images",
    "conv",
    "conv_transpose",
    "conv_weight_grad",
    "matmul",
    "normalise",
    "normalise_backward",
    "split_k_matmul",
    "unpack_bits",
    "unpack_bytes",
]
