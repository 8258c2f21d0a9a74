"""`python -m evenflow` is the command `evenflow`."""

from evenflow.cli import main

if __name__ == "__main__":
    main()
