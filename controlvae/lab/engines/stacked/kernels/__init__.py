"""Triton kernels of the stacked engine. Each launch covers the same layer of every model."""
