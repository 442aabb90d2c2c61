"""Command line: parses options, calls one function of the lab or the paper, and prints."""
