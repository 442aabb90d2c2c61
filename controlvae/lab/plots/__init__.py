"""Figures of runs: curves, image grids, latent traversals and mutual information."""
