"""Data sets, and the order in which their examples come. Modules load on use: rendering needs NumPy alone."""
