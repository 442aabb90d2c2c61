"""Small networks and settings for tests of rate-distortion curves."""

import torch
from torch import nn

TINY = {
    "training.steps": 500,
    "training.batch": 32,
    "data.images": 1_000,
    "model.channels": (8, 8, 8),
    "model.hidden": 32,
}
QUIET = {"device": "cpu", "progress": False, "threads": 1}


class SmallVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.heads = nn.Linear(12, 32), nn.Linear(32, 8)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 12))

    def encode(self, x):
        return self.heads(torch.relu(self.hidden(x))).chunk(2, 1)

    def decode(self, z):
        return self.decoder(z)
