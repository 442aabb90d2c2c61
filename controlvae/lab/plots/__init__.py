"""Figures of runs: curves, images, traversals."""
