"""`drawlot` and `python -m drawlot`."""

import sys


def main() -> None:
    """Run the command line, or say in one line what it needs."""
    try:
        from drawlot.entrypoints.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("drawlot"):
            raise
        sys.exit(f"drawlot: the command line needs {error.name}: pip install 'drawlot[engine]'")
    sys.exit(run())


if __name__ == "__main__":
    main()
