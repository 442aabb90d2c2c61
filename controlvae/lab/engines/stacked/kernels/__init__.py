"""Triton kernels over a stack of models: one launch serves them all."""
