"""`python -m controlvae`, the same as `controlvae`."""

from controlvae.cli.main import main

main()
