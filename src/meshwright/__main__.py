"""The command `meshwright`, and `python -m meshwright`: an interruption ends it with 130 at any moment."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: words after its name; the process's own by default.

    Returns:
        Its exit code; 130 where Ctrl+C or SIGTERM came, while modules were loaded, too.
    """
    try:
        from meshwright.interruptions import ending_politely

        with ending_politely():
            from meshwright.cli import main as command

            return command(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
