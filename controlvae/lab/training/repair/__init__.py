"""Self-repair of runs: symptoms in what training measures, remedies, and resuming with them."""
