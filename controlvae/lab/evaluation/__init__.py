"""Metrics of trained runs."""
