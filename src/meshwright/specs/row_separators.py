"""The one-line form of a plan where its tokens are joined by something else than dots."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshwright.errors import MeshwrightError

_JOINED = re.compile(r"[\s,;/|_:+*-]+|(?<=[0-9])(?=[a-z])")


def with_dots(text: str, read: Callable[[str], object]) -> str | None:
    """A refused plan with dots between its tokens: `tp8.pp4.dp2` for `tp8pp4dp2`, `TP8-PP4-DP2` or `tp8, pp4, dp2`.

    Args:
        text: what was refused.
        read: reads the one-line form, or refuses it.

    Returns:
        None where that is the same text, or refused too.
    """
    meant = ".".join(filter(None, _JOINED.sub(".", text.lower().replace("=", "")).split(".")))
    if meant == text:
        return None
    try:
        read(meant)
    except MeshwrightError:
        return None
    return meant
