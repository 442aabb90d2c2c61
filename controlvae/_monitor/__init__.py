"""Monitor of control loops: statistics for a certificate, and faults to warn about."""
