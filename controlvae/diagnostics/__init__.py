"""Diagnostics of a VAE in training: health, units of its loss, collapse."""
