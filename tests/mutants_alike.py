"""Which changes of the source nobody can see: `tests.mutants` does not draw them.

| what is changed | why nobody sees it |
|---|---|
| an annotation | it is a text that no code reads |
| `slots`, `frozen`, `kw_only` of a record, `strict` of `zip`, an `assert` | they refuse what our own code never does |
| the size of a cache | what was forgotten is made again |
| `==`, `<` and their like to `is` | the linter refuses it (F632), and Python's own store of numbers decides it |
| `is` to `==` | of None and of members of an enumeration the same; the linter refuses it (E711) |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

IDENTITY = re.compile(r"ReplaceComparisonOperator_(?:(?!Is)\w+_Is(?:Not)?|Is_Eq|IsNot_NotEq)$")
"""Operators of Cosmic Ray between a comparison of values and one of identities."""
UNION = "_BitOr_"
"""`int | None` is an annotation wherever it stands, in an alias, too."""
REFUSING = ("strict", "slots", "frozen", "kw_only")
"""Keywords that only refuse."""
KEEPING = ("cache", "lru_cache")
"""Decorators that keep results."""

Span = tuple[tuple[int, int], tuple[int, int]]
"""First and last line and column."""


def means_the_same(operator: str) -> bool:
    """Whether nobody can see what an operator of Cosmic Ray does, wherever it is.

    Args:
        operator: its name.
    """
    return UNION in operator or IDENTITY.search(operator) is not None


def unseen(text: str) -> list[Span]:
    """Where nobody can see a change.

    Args:
        text: of a module.
    """
    return [_span(node) for parent in ast.walk(ast.parse(text)) for node in _unseen_in(parent)]


def within(spans: list[Span], line: int, column: int) -> bool:
    """Whether a place is in one of some spans."""
    return any(first <= (line, column) <= last for first, last in spans)


def _unseen_in(node: ast.AST) -> Iterator[ast.expr | ast.stmt | ast.keyword]:
    """The parts of a node that nobody sees."""
    match node:
        case ast.Assert():
            yield node
        case ast.keyword() if node.arg in REFUSING:
            yield node
        case ast.arg(annotation=ast.expr() as told) | ast.AnnAssign(annotation=told):
            yield told
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from (one for one in node.decorator_list if isinstance(one, ast.Call) and _keeps(one))
            if not isinstance(node, ast.ClassDef) and node.returns:
                yield node.returns


def _keeps(decorator: ast.Call) -> bool:
    """Whether a decorator keeps results."""
    return isinstance(decorator.func, ast.Name) and decorator.func.id in KEEPING


def _span(node: ast.expr | ast.stmt | ast.keyword) -> Span:
    """The place of a node."""
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
