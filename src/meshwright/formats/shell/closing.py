"""Where quotes and brackets of a script close."""

from __future__ import annotations

BLANKS = " \t\n"
"""What divides words."""


def closing_quote(text: str, at: int, end: int) -> int:
    """Position of the `"` that closes a string which starts before `at`."""
    while at < end:
        char = text[at]
        if char == '"':
            return at
        if char == "\\":
            at += 2
        elif text.startswith("$(", at):
            at = closing(text, at + 2, end) + 1
        elif text.startswith("${", at):
            at = closing_brace(text, at + 2, end) + 1
        elif char == "`":
            at = max(text.find("`", at + 1, end), at) + 1
        else:
            at += 1
    return end


def closing(text: str, at: int, end: int) -> int:
    """Position of the `)` that closes a bracket which opens before `at`."""
    depth = 1
    while at < end:
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if char == "'":
            close = text.find("'", at + 1, end)
            at = end if close < 0 else close + 1
            continue
        if char == '"':
            at = closing_quote(text, at + 1, end) + 1
            continue
        if char == "#" and text[at - 1] in BLANKS:
            line = text.find("\n", at, end)
            at = end if line < 0 else line
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
        at += 1
    return end


def closing_brace(text: str, at: int, end: int) -> int:
    """Position of the `}` that closes a `${` which opens before `at`."""
    while at < end:
        char = text[at]
        if char == "}":
            return at
        if char == "\\":
            at += 2
        elif char == "'":
            close = text.find("'", at + 1, end)
            at = at + 1 if close < 0 else close + 1
        elif char == '"':
            at = closing_quote(text, at + 1, end) + 1
        elif text.startswith("${", at):
            at = closing_brace(text, at + 2, end) + 1
        elif text.startswith("$(", at):
            at = closing(text, at + 2, end) + 1
        else:
            at += 1
    return end
