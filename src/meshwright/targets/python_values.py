"""Values of Python files without running them: literals, names set once, arithmetic, and lists made by counting."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import Entry

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
UNKNOWN = (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)
"""What is raised where a value is not in the file."""


def expression_value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Args:
        node: the expression.
        names: values by name.

    Raises:
        ValueError: it is not in the file; others of `UNKNOWN` likewise.
    """
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = expression_value(node.left, names), expression_value(node.right, names)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)) and max(abs(left), abs(right)) < 10**12:
            return _OPERATIONS[type(node.op)](left, right)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part, names) for part in node.values)
    if isinstance(node, ast.ListComp):
        return _each_of_range(node, names)
    return ast.literal_eval(node)


MOST_ENTRIES = 10_000
"""Most entries of a list that is made by counting."""


def _text_of(part: ast.expr, names: Mapping[str, Any]) -> str:
    """A part of a formatted text; ValueError where its format says more than the value."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if not isinstance(part, ast.FormattedValue) or part.conversion != -1 or part.format_spec is not None:
        raise ValueError("a format of its own")
    return str(expression_value(part.value, names))


def _each_of_range(node: ast.ListComp, names: Mapping[str, Any]) -> list[Any]:
    """The entries of `[... for i in range(n)]`."""
    (loop,) = node.generators
    made = loop.iter
    plain = isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "range"
    if not plain or loop.ifs or loop.is_async or not isinstance(loop.target, ast.Name):
        raise ValueError("not made by counting")
    assert isinstance(made, ast.Call)
    counted = range(*(expression_value(one, names) for one in made.args))
    if len(counted) > MOST_ENTRIES:
        raise ValueError("too many entries")
    return [expression_value(node.elt, {**names, loop.target.id: at}) for at in counted]


def constants(tree: ast.Module) -> dict[str, Any]:
    """Names that a module sets once, to a value that stands in it."""
    stored: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[node.id] += 1
        elif isinstance(node, ast.arg):
            stored[node.arg] += 1
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


class _Places:
    """Where parts of a module stand in its text."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.end_lineno or 1, node.end_col_offset or 0)


def assigned(text: str) -> Iterator[tuple[str, Entry]]:
    """Names that a module, which has been read without an error, sets at its top, with where each value stands."""
    places = _Places(text)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            at = Entry(start=places.start(node), value=places.start(node.value), end=places.end(node.value))
            yield node.targets[0].id, at


def keywords(text: str) -> Iterator[Keyword]:
    """Keywords of every call of a module that has been read without an error."""
    places = _Places(text)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        start = places.start(node)
        around = Entry(start=start, value=start, end=places.end(node), table=True, braces=True)
        for given in node.keywords:
            value = places.start(given.value)
            at = Entry(start=places.start(given), value=value, end=places.end(given.value))
            yield Keyword(call=ast.unparse(node.func), name=str(given.arg), at=at, around=around)
