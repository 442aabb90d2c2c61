"""Fused update of a controller on a GPU: one Triton kernel, generated from the traces of its laws."""
