"""Training engines: operation by operation, as CUDA graphs, and many models stacked in one graph."""
