"""Collectives in a compiled program, counted as they run: loops times their trip count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """What a program sends in one run."""

    count: Mapping[str, int]
    """Of each kind."""
    result_bytes: Mapping[str, int]
    """On one device, of the results of each kind."""


def count_collectives(hlo: str) -> Collectives:
    """Collectives of a partitioned program, those of several arrays at once counted as one.

    Args:
        hlo: text of the compiled module, as `compiled.as_text()` gives it.
    """
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    bodies, entry = _computations(hlo)

    def walk(name: str, times: int) -> None:
        for line in bodies.get(name, ()):
            if found := _COLLECTIVE.search(line):
                count[found[2]] += times
                size[found[2]] += times * sum(_bytes(kind, dims) for kind, dims in _ARRAY.findall(found[1]))
            trips = _TRIPS.search(line)
            inner = times * (int(trips[1]) if trips and " while(" in line else 1)
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += [one.strip().lstrip("%") for one in branches.split(",")]
            for one in called:
                walk(one, inner)

    walk(entry, 1)
    return Collectives(count=dict(count), result_bytes=dict(size))


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """Lines of each computation by its name, and the name of the entry."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in hlo.splitlines():
        if not line.startswith(" ") and (found := _COMPUTATION.match(line)):
            name = found[2]
            bodies[name] = []
            entry = name if found[1] else entry
        elif name:
            bodies[name].append(line)
    return bodies, entry


def _bytes(kind: str, dims: str) -> int:
    bits = _BITS.search(kind)
    entries = int(np.prod([int(size) for size in dims.split(",") if size], dtype=np.int64))
    return entries * (max(int(bits[0]) // 8, 1) if bits else 1)
