"""Training engines: eager, CUDA graphs, and many models stacked in one graph."""
