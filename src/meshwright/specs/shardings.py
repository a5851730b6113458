"""What data ranks share of a layer's states, by the words of plans: a record for each kind.

z0              everything replicated
z1, z2, z3      optimizer states sharded; + gradients; + weights (ZeRO)
fsdp            as z3, and the fp32 shard itself is the main copy; `fsdp-keep` keeps weights that were gathered
weipipe         weights sharded by whole layers, which travel round the ranks
hsdp8           fsdp inside groups of 8 ranks, replicated between them
z1in8           z1 inside groups of 8 ranks, as Megatron-LM's --num-distributed-optimizer-instances
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from meshwright.specs.strategy import COLLECTIVE, DataParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingKind:
    """One kind: what a plan's word says of `DataParallel`."""

    name: str
    """The word; of a kind in groups, what stands before the number of ranks of a group."""
    zero: int
    """What is sharded, as `DataParallel.zero`."""
    family: Literal["zero", "fsdp"] = "zero"
    reshard: bool = True
    grouped: bool = False
    """Whether groups of a stated number of ranks hold a copy each."""
    passing: str = COLLECTIVE
    """How weights and gradients get to other ranks."""
    searched: bool = False
    """Whether a search tries it unasked; others are tried where they are named, or where `--methods` opens the axis."""

    @property
    def travels(self) -> bool:
        """Whether weights go from rank to rank in a way of their own."""
        return self.passing != COLLECTIVE

    @property
    def gathers_layers(self) -> bool:
        """Whether ranks gather the weights of a layer before they compute it, and free them behind."""
        return self.zero == 3 and self.reshard and not self.travels

    @property
    def shards_all(self) -> bool:
        """Whether every rank keeps its own part of the weights and of nothing else, and gathers those of the others."""
        return self.gathers_layers and not self.grouped

    def data(self, dp: int, cp: int, group: int, more: dict[str, Any]) -> DataParallel:
        """The record of a plan's row.

        States are sharded over data x context ranks, so a group of N ranks holds N / cp data ranks.

        Args:
            dp: data degree.
            cp: context degree.
            group: ranks of a group; read for kinds in groups alone.
            more: other fields.
        """
        shard = 1 if not self.zero else max(1, group // cp) if self.grouped else dp
        return DataParallel(
            replicate=max(1, dp // shard),
            shard=shard,
            zero=self.zero,
            family=self.family,
            reshard=self.reshard,
            passing=self.passing,
            **more,
        )


SHARDINGS: dict[str, ShardingKind] = {
    kind.name: kind
    for kind in (
        ShardingKind(name="z0", zero=0, searched=True),
        ShardingKind(name="z1", zero=1, searched=True),
        ShardingKind(name="z2", zero=2, searched=True),
        ShardingKind(name="z3", zero=3, searched=True),
        ShardingKind(name="fsdp", zero=3, family="fsdp", searched=True),
        ShardingKind(name="fsdp-keep", zero=3, family="fsdp", reshard=False, searched=True),
        ShardingKind(name="weipipe", zero=3, passing="ring"),
        ShardingKind(name="hsdp", zero=3, family="fsdp", grouped=True, searched=True),
        ShardingKind(name="z1in", zero=1, grouped=True),
    )
}
"""The kinds of sharding by name, in the order in which searches try them."""
UNSHARDED = "z0"
"""The kind of a plan that names none, and of one whose ranks share no states."""


def plain_shardings(*named: object) -> tuple[str, ...]:
    """Kinds without groups that a search tries unasked, and those that are named.

    Args:
        named: names of kinds.
    """
    return tuple(kind.name for kind in _kinds(*named) if not kind.grouped)


def searched_shardings(*named: object) -> tuple[str, ...]:
    """Kinds that a search tries unasked, and those that are named.

    Args:
        named: names of kinds.
    """
    return tuple(kind.name for kind in _kinds(*named))


def _kinds(*named: object) -> Iterator[ShardingKind]:
    return (kind for kind in SHARDINGS.values() if kind.searched or kind.name in named)


def grouped_shardings() -> tuple[str, ...]:
    """Kinds with groups."""
    return tuple(kind.name for kind in SHARDINGS.values() if kind.grouped)


def ungrouped(kind: ShardingKind) -> tuple[str, ...]:
    """Kinds without groups that share the same states in the same way as one with groups.

    Args:
        kind: the kind with groups.
    """
    return tuple(
        one.name
        for one in SHARDINGS.values()
        if (one.zero, one.family, one.passing) == (kind.zero, kind.family, kind.passing) and not one.grouped
    )


@lru_cache(maxsize=512)
def sharding_of(data: DataParallel) -> ShardingKind:
    """The kind of a record; of one that is of no kind, the nearest.

    Args:
        data: the record.
    """

    def apart(kind: ShardingKind) -> tuple[bool, ...]:
        return (
            kind.passing != data.passing,
            kind.family != data.family,
            kind.zero != data.zero,
            kind.grouped != (data.replicate > 1),
            kind.reshard != data.reshard,
        )

    return min(SHARDINGS.values(), key=apart)
