"""The command `meshwright`: parses, calls a function of `app`, prints what comes back."""

from __future__ import annotations

from meshwright.cli.entry import main

__all__ = ["main"]
