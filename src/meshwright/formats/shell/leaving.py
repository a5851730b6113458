"""How a loop, a function or a script is left before its end."""

from __future__ import annotations


class Left(Exception):
    """`break`, `continue`, `return` or `exit`."""

    def __init__(self, kind: str, count: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.count = kind, count
