"""How a loop, a function or a script is left before its end."""

from __future__ import annotations

from meshwright.formats.shell.values import ScriptLine


class Left(Exception):
    """`break`, `continue`, `return` or `exit`."""

    def __init__(self, kind: str, count: int = 1, *, at: ScriptLine | None = None, failed: bool = False) -> None:
        super().__init__(kind)
        self.kind, self.count = kind, count
        self.at, self.failed = at, failed
        """Where a script is left, and whether with an error."""
