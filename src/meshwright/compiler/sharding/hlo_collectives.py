"""Collectives in a compiled program, counted as they run: loops times their trip count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.compiler.sharding.scattered_sums import ScatteredSums

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BITS = re.compile(r"\d+")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
_GROUPS_BY_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'(\w+)'=(\d+)")
_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
"""Name of an axis of a mesh, and the size of the part of it that is meant where it is not all of it."""
_DEVICES = re.compile(r"num_partitions=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """What a program sends in one run."""

    count: Mapping[str, int]
    """Number of collectives of each kind."""
    result_bytes: Mapping[str, int]
    """Bytes of the results of each kind, on one device."""
    numbers: Mapping[str, int]
    """Number of those that move single numbers only (a loss, a norm, a count), by kind."""
    sent_bytes: float
    """Out of one device, where each goes around a ring of its devices."""
    whole_sums_bytes: float = 0.0
    """Part of these that compilers for GPUs and TPUs save: of all-reduces whose devices each keep their part only, they
    make reduce-scatters."""

    @property
    def scattered_bytes(self) -> float:
        """Out of one device where sums that are kept in parts are reduce-scattered."""
        return self.sent_bytes - self.whole_sums_bytes

    @property
    def of_arrays(self) -> dict[str, int]:
        """Number of collectives that move more than single numbers, by kind."""
        found = {kind: count - self.numbers.get(kind, 0) for kind, count in self.count.items()}
        return {kind: count for kind, count in found.items() if count}

    def times(self, runs: int) -> Collectives:
        """The collectives of so many runs.

        Args:
            runs: the number of runs of the program.
        """
        counted = [{kind: runs * n for kind, n in one.items()} for one in (self.count, self.result_bytes, self.numbers)]
        return Collectives(
            count=counted[0],
            result_bytes=counted[1],
            numbers=counted[2],
            sent_bytes=runs * self.sent_bytes,
            whole_sums_bytes=runs * self.whole_sums_bytes,
        )


def in_all(programs: Iterable[Collectives]) -> Collectives:
    """What several programs send together.

    Args:
        programs: any.
    """
    count, size, numbers = Counter[str](), Counter[str](), Counter[str]()
    sent = saved = 0.0
    for one in programs:
        count.update(one.count)
        size.update(one.result_bytes)
        numbers.update(one.numbers)
        sent += one.sent_bytes
        saved += one.whole_sums_bytes
    return Collectives(
        count=dict(count), result_bytes=dict(size), numbers=dict(numbers), sent_bytes=sent, whole_sums_bytes=saved
    )


def count_collectives(hlo: str) -> Collectives:
    """Collectives of a partitioned program, those of several arrays at once counted as one.

    Args:
        hlo: text of the compiled module, as `compiled.as_text()` gives it.
    """
    count, size, numbers = Counter[str](), Counter[str](), Counter[str]()
    sent = saved = 0.0
    bodies, entry = _computations(hlo)
    sums = ScatteredSums(bodies)
    devices = int(found[1]) if (found := _DEVICES.search(hlo)) else 1

    def walk(name: str, times: int) -> None:
        nonlocal sent, saved
        for line in bodies.get(name, ()):
            if found := _COLLECTIVE.search(line):
                arrays = _ARRAY.findall(found[1])
                moved = sum(_bytes(kind, dims) for kind, dims in arrays)
                count[found[2]] += times
                size[found[2]] += times * moved
                numbers[found[2]] += times * all(_entries(dims) == 1 for _, dims in arrays)
                group = _group_of(line, devices)
                sent += times * moved * _ring_share(found[2], group)
                if found[2] == "all-reduce" and group > 1:
                    kept = zip(arrays, sums.parts(name, line, group), strict=True)
                    saved += times * sum(_bytes(*array) for array, part in kept if part) * (group - 1) / group
            trips = _TRIPS.search(line)
            inner = times * (int(trips[1]) if trips and " while(" in line else 1)
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += [one.strip().lstrip("%") for one in branches.split(",")]
            for one in called:
                walk(one, inner)

    walk(entry, 1)
    return Collectives(
        count=dict(count), result_bytes=dict(size), numbers=dict(numbers), sent_bytes=sent, whole_sums_bytes=saved
    )


def _group_of(line: str, devices: int) -> int:
    """Devices that take part in a collective together."""
    if by_axes := _GROUPS_BY_AXES.search(line):
        sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(by_axes[1])}
        return prod(int(part) if part else sizes[name] for name, part in _AXIS.findall(by_axes[2]))
    found = _GROUPS.search(line)
    if not found or found[1] == "":
        return devices
    return int(found[2]) if found[2] else found[1].count(",") + 1


def _ring_share(kind: str, group: int) -> float:
    """Bytes that a device sends for each byte of the result."""
    rounds = {"all-reduce": 2.0, "reduce-scatter": float(group)}.get(kind, 1.0)
    return 1.0 if kind == "collective-permute" else rounds * (group - 1) / group


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
    return _entries(dims) * (max(int(bits[0]) // 8, 1) if bits else 1)


def _entries(dims: str) -> int:
    return int(np.prod([int(size) for size in dims.split(",") if size], dtype=np.int64))
