"""A module of torchtitan with one value of its configuration changed where it is written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import Entry, KeyText, leaves
from meshwright.targets.torchtitan.module import literal
from meshwright.targets.torchtitan.read import RECOMPUTE, SECTIONS, module_keys

_KINDS = "torchtitan.distributed.activation_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleText(KeyText):
    """A module whose values are keywords of calls."""

    def with_value(self, path: str, value: Any) -> str | None:
        """As for other texts; a kind of recompute is imported where it was not."""
        text = KeyText.with_value(self, path, value)
        if text is None or path != RECOMPUTE or value == "none" or re.search(rf"import [^\n]*\b{value}\b", text):
            return text
        line = f"from {_KINDS} import {value}\n"
        at = re.search(r"^(from|import) torchtitan", text, re.MULTILINE)
        return None if at is None else text[: at.start()] + line + text[at.start() :]


def edited_module(name: str, text: str) -> KeyText | None:
    """A Python module as a text that can be edited; None for TOML, which torchtitan takes no more."""
    if not name.endswith(".py"):
        return None
    entries = dict(_entries(text))
    values = dict(leaves(module_keys(text)[0]))
    return ModuleText(text=text, entries=entries, said=_said, key=str, values=values, joint="=")


def _said(value: Any) -> str:
    if value in ("FullAC", "SelectiveAC"):
        return f"{value}.Config()"
    return "None" if value == "none" else literal(value)


def _entries(text: str) -> Iterator[tuple[tuple[str, ...], Entry]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        for given in node.keywords:
            value, end = given.value, at(given.value.end_lineno or 1, given.value.end_col_offset or 0)
            entry = Entry(start=at(given.lineno, given.col_offset), value=at(value.lineno, value.col_offset), end=end)
            if name in SECTIONS:
                yield (SECTIONS[name], str(given.arg)), entry
            elif name == "Trainer.Config" and given.arg == RECOMPUTE:
                yield (RECOMPUTE,), entry
        if name in SECTIONS:
            start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 1, node.end_col_offset or 0)
            yield (SECTIONS[name],), Entry(start=start, value=start, end=end, table=True, braces=True)
