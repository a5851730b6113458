"""Plan files among the texts that users give."""

from __future__ import annotations

import os
import re

MOST_BYTES = 64 * 2**20
_SCHEMA = re.compile(r'"schema"\s*:\s*"meshwright\.(plan(?:-set)?)/')


def is_plan_file(text: str) -> bool:
    """Whether text names a file that holds plans, or one of them (`plans.json#2`): a model's config.json is none."""
    path = text.partition("#")[0]
    if not path.endswith(".json") or not os.path.isfile(path):
        return "#" in text and path.endswith(".json")
    return any(_schemas(path))


def is_one_plan(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds one plan, as `export` writes it beside its files, and no set of them."""
    return os.path.isfile(path) and {*_schemas(path)} == {"plan"}


def _schemas(path: str | os.PathLike[str]) -> list[str]:
    """What a file says its parts are, of `plan` and `plan-set`; a set holds plans."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return _SCHEMA.findall(stream.read(MOST_BYTES))
    except OSError:
        return []  # who reads it as a model says what is wrong with it
