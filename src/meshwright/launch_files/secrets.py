"""Keys, tokens and passwords in the texts of users: never shown, kept in the files that are written."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"""(?<![\w-])(?!(?:pad|eos|bos|unk)_token\b)"""
    r"""((?:[\w-]*[-_])?(?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)"""
    r"""(?!["'$\s\\-])[^\s"']+""",
    re.IGNORECASE,
)
"""A name that ends in a word for a secret, and its value, unless that is a variable."""
_SECRET_VARIABLE = re.compile(
    r"""((?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)\$\{?(\w+)""",
    re.IGNORECASE,
)
"""The same with a variable behind it."""
_ASSIGNED = re.compile(r"""((?<!\w)(\w+)(?:=|:[-=])["']?)(?!["'$\s}])[^\s"'}]+""")
"""A variable that is set, or has a default, and its value."""


def without_secrets(text: str) -> str:
    """A text to show, with what stands for keys, tokens and passwords left out of every line."""
    names = secret_names(text)
    return "".join(masked(line, names) for line in text.splitlines(keepends=True))


def secret_names(text: str) -> frozenset[str]:
    """Variables of a script that are given where a key, a token or a password stands."""
    return frozenset(found[2] for found in _SECRET_VARIABLE.finditer(text))


def masked(line: str, names: frozenset[str] = frozenset()) -> str:
    """A line to show, with what stands for a key, a token or a password left out; the file that is written keeps it.

    Args:
        line: the line of a script.
        names: variables whose values are secrets.
    """
    line = _SECRET.sub(lambda found: f"{found[1]}***", line)
    return _ASSIGNED.sub(lambda found: f"{found[1]}***" if found[2] in names else found[0], line)
