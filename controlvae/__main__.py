"""`python -m controlvae`, the same as `controlvae`."""

from controlvae.lab.cli.main import main

main()
