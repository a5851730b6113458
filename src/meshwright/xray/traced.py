"""What one rank of a job was seen to do: operators, collectives, and the bytes that live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from meshwright.records import Record

Phase = Literal["forward", "backward", "recompute", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Record):
    """Operators of one kind, shape and phase."""

    name: str
    phase: str
    shape: tuple[int, ...]
    """Shape of a matrix product: groups, m, n, k; of anything else its first operand."""
    dtype: str
    count: int
    flop: float
    """FLOP of all of them; 0 where no product is made."""

    @property
    def is_gemm(self) -> bool:
        """Whether it is a product of two matrices."""
        return self.name == "gemm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Record):
    """Collectives of one kind, group, size and phase."""

    kind: str
    group: str
    """What the ranks share: `tp`, `cp`, `dp`, `ep`, `pp`, or the framework's own name."""
    ranks: int
    payload_bytes: int
    """The whole tensor: gathered, before it is scattered, reduced; what a rank sends of an exchange."""
    phase: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Record):
    """Live bytes when a phase of the step had most of them."""

    name: str
    live_bytes: int
    by_kind: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Record):
    """One rank, start to end."""

    framework: str
    version: str
    rank: int
    world: int
    micro_batches: int
    """Micro-batches that were run; the operators are of all of them."""
    of_micro_batches: int
    """Micro-batches of a step."""
    parameters: int
    """Parameters on the rank."""
    operators: tuple[Operator, ...]
    collectives: tuple[Collective, ...]
    moments: tuple[Moment, ...]
    """Moments in the order of the step."""
    substitutes: tuple[str, ...]
    """What something stood in for, with the package that has it and needs a GPU."""
    notes: tuple[str, ...]
    seconds: float
    """Seconds on this machine."""

    @property
    def peak(self) -> Moment:
        """When most bytes live."""
        return max(self.moments, key=lambda one: one.live_bytes)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Traced:
        """The rank from the data of `to_dict`."""
        made = {
            "operators": tuple(Operator(**{**one, "shape": tuple(one["shape"])}) for one in data["operators"]),
            "collectives": tuple(Collective(**one) for one in data["collectives"]),
            "moments": tuple(Moment(**one) for one in data["moments"]),
            "substitutes": tuple(data["substitutes"]),
            "notes": tuple(data["notes"]),
        }
        return cls(**{**data, **made})
