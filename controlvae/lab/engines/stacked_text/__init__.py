"""Text and dialog models that are trained side by side as one stack."""
