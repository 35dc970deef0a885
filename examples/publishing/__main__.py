"""`python -m examples.publishing`."""

from examples.publishing.cli import main

if __name__ == "__main__":
    main(prog_name="python -m examples.publishing")
