"""The paper: its presets, printed numbers, tables and figures."""
