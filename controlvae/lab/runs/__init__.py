"""Run folders: their files, logs, checkpoints and requests, and trained runs loaded from them."""
