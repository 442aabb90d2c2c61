"""Diagnostics for a VAE in training: health report, loss units and posterior collapse."""
