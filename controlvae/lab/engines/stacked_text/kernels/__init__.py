"""Triton kernels of the stacked text engine."""
