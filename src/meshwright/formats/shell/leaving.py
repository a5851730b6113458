"""How a loop, a function or a script is left before its end."""

from __future__ import annotations

from meshwright.formats.shell.values import ScriptLine


class Left(Exception):
    """`break`, `continue`, `return` or `exit`."""

    def __init__(self, kind: str, count: int = 1, *, failed_at: ScriptLine | None = None) -> None:
        super().__init__(kind)
        self.kind, self.count = kind, count
        self.failed_at = failed_at
        """Where it is left with an error."""
