"""A local page over run folders: curves that grow, latents to move, and the set point of a run in training."""
