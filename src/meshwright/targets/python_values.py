"""Values of Python files without running them: literals, names set once to one, and arithmetic of whole numbers."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import Entry

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
UNKNOWN = (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)
"""What is raised where a value does not stand in the file."""


def expression_value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Args:
        node: the expression.
        names: values by name.

    Raises:
        ValueError: it does not stand in the file; others of `UNKNOWN` likewise.
    """
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = expression_value(node.left, names), expression_value(node.right, names)
        if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) < 10**12:
            return _OPERATIONS[type(node.op)](left, right)
    return ast.literal_eval(node)


def constants(tree: ast.Module) -> dict[str, Any]:
    """Names that a module sets once, to a value that stands in it."""
    stored = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    stored.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        with contextlib.suppress(*UNKNOWN):
            if isinstance(target, ast.Name) and stored[target.id] == 1:
                found[target.id] = expression_value(value, found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """A keyword of a call, by where it stands in a text."""

    call: str
    """What is called, as it is written."""
    name: str
    at: Entry
    around: Entry
    """The call."""


def keywords(text: str) -> Iterator[Keyword]:
    """Keywords of every call of a module that has been read without an error."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def end(node: ast.expr) -> int:
        return offset(node.end_lineno or 1, node.end_col_offset or 0)

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        start = offset(node.lineno, node.col_offset)
        around = Entry(start=start, value=start, end=end(node), table=True, braces=True)
        for given in node.keywords:
            value = offset(given.value.lineno, given.value.col_offset)
            at = Entry(start=offset(given.lineno, given.col_offset), value=value, end=end(given.value))
            yield Keyword(call=ast.unparse(node.func), name=str(given.arg), at=at, around=around)
