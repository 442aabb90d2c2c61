"""User-supplied models and data in the lab: recognised, checked and trained."""
