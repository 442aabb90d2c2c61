"""Integrations with training frameworks, one file each. A file imports its framework only."""
