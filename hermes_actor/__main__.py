"""``python -m hermes_actor`` and the console script: the command line, imported late."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line with the arguments of this process."""
    if sys.platform == "win32":
        sys.stderr.write(
            "hermes-actor does not support Windows yet; it runs on Linux, macOS and WSL.\n"
        )
        return 1
    from hermes_actor.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
