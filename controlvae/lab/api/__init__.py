"""Functions of `controlvae.lab`, one module per task. The command line calls the same functions."""
