"""Training speed, compared with other ways to train the same model."""
