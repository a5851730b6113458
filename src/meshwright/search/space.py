"""The default space as an axis table: every legal value of every axis of a homogeneous plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which values each axis may take; None stands for every legal value.

    | axis | values |
    |---|---|
    | tp | every degree that divides heads, feed-forward widths and (with cp) the sequence |
    | cp | every degree; kinds p2p, a2a, ag, and a2a inside p2p for every split |
    | ep, etp | every divisor of the experts, of the expert width; ep x etp folds over tp x cp x dp |
    | pp | every divisor of the devices up to the layers |
    | vpp | 1, and every number of chunks that the schedule allows |
    | mbs | every divisor of the sequences of a data-parallel rank |
    | sharding | z0, z1, z2, z3, fsdp, fsdp-keep, hsdp for every group size |
    | recompute | none, selective (attention core), full, and block of 1/4, 1/2, 3/4 of the largest chunk |
    | tensor overlap | bulk, ring |
    | schedule | 1f1b, gpipe, interleaved; others where they are named |
    | dp | what is left of the devices |

    Schedules that are named have at most 4 chunks per worker and p x m x v of at most 1,024 (zb-auto: 32), for their
    tables are built one by one.
    """

    pins: tuple[tuple[str, tuple[object, ...]], ...] = ()
    """Axes held to these values: tp, cp, cp_kind, pp, vpp, ep, etp, dp, mbs, sharding, recompute, tp_overlap and
    schedule."""
    tight: bool = False
    """Admit plans that leave less than 8% of the memory free."""

    def pinned(self, axis: str) -> tuple[object, ...] | None:
        """The values an axis is held to, None if it is free."""
        return dict(self.pins).get(axis)
