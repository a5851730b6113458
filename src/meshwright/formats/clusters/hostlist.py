"""Slurm's short lists of hosts: `gpu[01-03,07],login1` is gpu01, gpu02, gpu03, gpu07, login1."""

from __future__ import annotations

import itertools
import re

MAX_HOSTS = 200_000
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")


def hosts(text: str) -> list[str]:
    """All hosts of a list, in order.

    Raises:
        ValueError: a range that is none, or more than `MAX_HOSTS`.
    """
    found: list[str] = []
    for item in filter(None, _OUTER_COMMA.split(text.strip())):
        parts = re.split(r"\[([^\]]*)\]", item)
        # Every second part stood in brackets.
        choices = [_ranges(part) if index % 2 else [part] for index, part in enumerate(parts)]
        found += itertools.islice(map("".join, itertools.product(*choices)), MAX_HOSTS + 1)
        if len(found) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")
    return found


def _ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if match is None:
            raise ValueError(f"{part[:20]!r} is no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= first + MAX_HOSTS:
            raise ValueError(f"{part[:20]!r} is no range of numbers")
        width = len(match[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers
