"""Training of one model on several processes: its group, its slices of batches, its gradients."""
