"""Entry point of the command `lockstead`: names the extra to install where its libraries are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")

UNAVAILABLE = 69
"""As for a store whose client library is missing; `Exit` cannot be imported without click."""


def main() -> None:
    """Run the command, or exit with a message that names the extra to install."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"lockstead: the command line needs {' and '.join(missing)}: pip install 'lockstead[cli]'\n")
        sys.exit(UNAVAILABLE)
    from lockstead.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
