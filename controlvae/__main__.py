"""Run the command line with `python -m controlvae` or `controlvae`."""

from controlvae.lab.cli.main import main

if __name__ == "__main__":
    main()
