"""`python -m controlvae` and the `controlvae` command."""

import sys


def main() -> None:
    """Run the command line, or say how to install it where its packages are missing."""
    try:
        from controlvae.lab.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"controlvae: the command line needs {error.name}; "
            "install it with: pip install 'controlvae[lab]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
