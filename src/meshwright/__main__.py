"""The command `meshwright`, and `python -m meshwright`: an interruption ends it with 130 at any moment."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

MANY_OBJECTS = 200_000
"""New ones after which Python looks for cycles: verbs make few, and looking takes some percent of a short one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: words after its name; the process's own by default.

    Returns:
        Its exit code; 130 where Ctrl+C or SIGTERM came, while modules were loaded, too.
    """
    usual = gc.get_threshold()
    gc.set_threshold(MANY_OBJECTS, *usual[1:])
    try:
        from meshwright.interruptions import ending_politely

        with ending_politely():
            from meshwright.cli import main as command

            return command(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if arguments is None:
            # The process ends here: it does not look through all that is left once more.
            gc.freeze()
        gc.set_threshold(*usual)


if __name__ == "__main__":
    sys.exit(main())
