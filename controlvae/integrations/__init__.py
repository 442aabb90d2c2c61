"""The controller inside other frameworks: one optional file each, which imports its framework and `control` alone."""
