"""Syntax trees of bash, and the stretches of text that their nodes stand for.

The grammar is tree-sitter's, https://github.com/tree-sitter/tree-sitter-bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from meshwright.formats.shell.source import Source

if TYPE_CHECKING:
    from tree_sitter import Node

MASKED = 8
_JOINED = re.compile(r"^([^#\n]*[^\s\\#])\\\n(?=\S)", re.MULTILINE)
_ESCAPED = re.compile(r"\\[<>()!&;|]")
_EXPANSION = re.compile(r"\$\{[^{}\n\"'`\\()]*\}|\$\(\([^()\n\"'`\\{}]*\)\)|`[ \t]*#[^`\n]*`|\$[A-Za-z_]\w*")


@cache
def _parser() -> Any:
    import tree_sitter_bash  # loaded with the first script that is read
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The syntax tree; positions in it count letters."""
    plain = "".join(char if char < "\x80" else "x" for char in text)
    for _ in range(MASKED):
        # Expansions are read by `words`: to the grammar they are letters of a word.
        plain, count = _EXPANSION.subn(lambda match: "x" * len(match[0]), plain)
        if not count:
            break
    # A word goes on behind a backslash at the end of its line; a comment does not.
    plain = _JOINED.sub(lambda match: f"{match[1]}xx", plain)
    plain = _ESCAPED.sub(lambda match: "==" if match[0][1] in "<>" else "xx", plain)
    if plain.endswith("\\\n"):
        plain = plain[:-2] + "\n\n"
    elif plain.endswith("\\"):
        plain = plain[:-1] + "\n"
    return _parser().parse(plain.encode("ascii")).root_node


def text_at(node: Node, source: Source) -> str:
    """The text of a node."""
    return source.text[node.start_byte : node.end_byte]


def file_name(text: str) -> str:
    """The last part of a path: what files of a script are known by."""
    return text.strip().rstrip("/").rpartition("/")[2]


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A stretch without the blanks at its ends."""
    while start < end and text[start] in " \t\n":
        start += 1
    while end > start and text[end - 1] in " \t\n" and text[end - 2 : end - 1] != "\\":
        end -= 1
    return start, end


def between(node: Node, source: Source, opening: str, closing: str) -> tuple[int, int]:
    """The stretch between a node's brackets."""
    text = source.text[node.start_byte : node.end_byte]
    start = node.start_byte + text.index(opening) + len(opening)
    last = text.rfind(closing)
    if opening == "((" and "do" not in node.type and node.type == "c_style_for_statement":
        marks = [child for child in node.children if child.type == "))"]
        return start, marks[0].start_byte if marks else start
    return start, node.start_byte + last if last > 0 else node.end_byte


def redirects_of(nodes: list[Node]) -> Iterator[Node]:
    """Redirects, with those that stand behind a heredoc's mark."""
    for node in nodes:
        yield node
        if node.type == "heredoc_redirect":
            yield from (child for child in node.children if child.type in ("file_redirect", "herestring_redirect"))


def is_aside(node: Node) -> bool:
    """Whether a part of a command is none of its words: a redirect or a comment."""
    return node.type == "comment" or node.type.endswith("_redirect")


def leading_assignments(node: Node) -> list[Node]:
    """Assignments in front of the words of a command."""
    parts = (child for child in node.children if not is_aside(child))
    return list(takewhile(lambda child: child.type == "variable_assignment", parts))


def assigned(node: Node, source: Source) -> set[str]:
    """Names that statements below a node set."""
    names: set[str] = set()
    stack = [node]
    while stack:
        here = stack.pop()
        if here.type == "variable_assignment":
            target = here.child_by_field_name("name")
            if target is not None:
                names.add(text_at(target, source).partition("[")[0])
        elif here.type == "for_statement":
            variable = here.child_by_field_name("variable")
            names |= {text_at(variable, source)} if variable is not None else set()
        elif here.type == "postfix_expression":
            names.add(text_at(here.children[0], source))
        elif here.type == "command" and text_at(here, source).startswith(("read ", "mapfile ", "readarray ")):
            names |= {word for word in text_at(here, source).split()[1:] if word.isidentifier()}
        stack += here.children
    return names


def torn_at(node: Node, source: Source) -> int | None:
    """Where a command that spans lines without a backslash goes on as another one; None where it is one."""
    parts = [child for child in node.children if child.is_named]
    for one, following in pairwise(parts):
        between_them = source.text[one.end_byte : following.start_byte]
        if "\n" in between_them.replace("\\\n", "") and one.type != "heredoc_redirect":
            return following.start_byte
    return None
