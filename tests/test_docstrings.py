"""Docstrings name what they describe: a field "Of values." leaves its reader to guess the noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "meshwright"
NO_NOUN = re.compile(
    r"(Of|And|Or|But|Likewise|That|Those|Their|Its|It|They|As(?! data)|In|By|Per|Whose|With|Without|For|On|To|Into"
    r"|Behind|Before|After|Until|Beside|Between|Beyond|Under|Over|Inside|Within|Also|Too|So)\b"
)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A module and all statements in it; docstrings are in no expression, of which there are ten times as many."""
    inside = [tree]
    while inside:
        yield (node := inside.pop())
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, part, None)
            inside += below if isinstance(below, list) else ()


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings of classes and functions, and the strings below fields, each with its line."""
    for node in statements(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (own := ast.get_docstring(node)):
            yield node.body[0].lineno, own
        body = getattr(node, "body", None)
        for above, below in pairwise(body) if isinstance(body, list) else ():
            if isinstance(above, ast.AnnAssign | ast.Assign) and isinstance(below, ast.Expr):
                value = below.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield below.lineno, value.value


@cache
def docstrings() -> tuple[tuple[str, str], ...]:
    """All of the package, each with its place."""
    return tuple(
        (f"{path.relative_to(PACKAGE)}:{line}", text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(ast.parse(path.read_text()))
    )


NO_ARGUMENT = re.compile(
    r"(of|and|or|but|likewise|that|it|they|as|in|by|per|whose|which|with|without|for|on|to|into|from|at"
    r"|behind|before|after|until|beside|between|beyond|under|over|inside|within|also|too|so)\b"
)
"""Words that begin the description of an argument without a noun: `job: as asked.`"""
ARGUMENT = re.compile(r"    ([\w*]+): (.*)")


def arguments(text: str) -> Iterator[tuple[str, str]]:
    """Arguments that a docstring lists, each with the first line of its description."""
    _, found, listed = text.partition("\nArgs:\n")
    for line in listed.splitlines() if found else ():
        if not line.startswith("    "):
            return
        if entry := ARGUMENT.fullmatch(line):
            yield entry[1], entry[2]


def test_every_docstring_begins_with_what_it_describes() -> None:
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if NO_NOUN.match(text)]
    assert not found, "\n".join(found)


def test_every_argument_is_named_by_what_it_is() -> None:
    found = [
        f"{place}: {name}: {described}"
        for place, text in docstrings()
        for name, described in arguments(text)
        if NO_ARGUMENT.match(described)
    ]
    assert not found, "\n".join(found)
