"""Many models in one captured graph on a GPU. Needs Triton, so it is imported only where a GPU is used."""
