"""``python -m hermes_actor`` and the console script: the command line, imported late."""

from __future__ import annotations

import gc
import sys

_COLLECT_EVERY = 20_000


def main() -> int:
    """Run the command line with the arguments of this process."""
    if sys.platform == "win32":
        sys.stderr.write(
            "hermes-actor does not support Windows yet; it runs on Linux, macOS and WSL.\n"
        )
        return 1
    # Most of the tenth of a second that a command takes are imports, which leave nothing to
    # collect; and what is left at the end goes with the process, without another look at it.
    gc.set_threshold(_COLLECT_EVERY)
    from hermes_actor.cli import run

    try:
        return run(sys.argv[1:])
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
