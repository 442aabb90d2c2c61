"""Evaluation of trained runs: metrics, generated samples and statistics over seeds.

`registry.py` lists every metric; `evaluate.py` computes them and writes `metrics.json`.
"""
