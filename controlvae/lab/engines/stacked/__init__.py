"""Stacked engine: many models trained in one CUDA graph. It needs Triton, so import it lazily."""
