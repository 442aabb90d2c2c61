"""Image files, NumPy arrays and the user's own images."""
