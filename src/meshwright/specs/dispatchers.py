"""How tokens and experts on other ranks meet, by the words of plans: a record for each dispatcher.

(no word)   every copy of a token is sent to its expert (GShard, Switch)
epag        all ranks get all tokens
epdedup     a token is sent once to a domain and there once to a rank (DeepEP, HybridEP)
ep2h        exchanges go inside domains first, then between them (DeepSpeed-MoE, Tutel's 2DH)
epmove      tokens stay, weights of experts are gathered (Janus)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from meshwright.specs.check import Check

ALLTOALL = "alltoall"
"""The dispatcher of a plan that names none."""
Trait = Literal["once", "by_level", "gathers", "moves", "sends_otherwise"]
"""What strategies ask of a dispatcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """One dispatcher, of at most one trait; without any, an all-to-all of every copy of a token."""

    name: str
    """Name in plan files and in `--pin dispatcher=NAME`."""
    token: str
    """Token in one-line plans; empty for the default."""
    once: bool = False
    """A token enters a domain once, and there a rank once, however many of its experts are there."""
    by_level: bool = False
    """Exchanges go level by level, and tokens are laid out anew in between."""
    gathers: bool = False
    """All ranks of a group get all tokens, and sums of what they make of them are scattered."""
    moves: bool = False
    """Weights are gathered where the tokens are."""
    traffic: str = ""
    """A name of `strategies.DISPATCHES` that says what is sent instead; empty where the traits say it."""
    searched: Literal["", "loads", "always"] = ""
    """Whether a search tries it unasked: never, where a load of experts is stated, or always."""
    hidden: bool = False
    """Whether such a search tries it beside the compute of another micro-batch, too."""
    runs: bool = False
    """Whether the runtime does it."""

    def __post_init__(self) -> None:
        check = Check(f"dispatcher {self.name}")
        stated = [name for name in ("once", "by_level", "gathers", "moves", "traffic") if getattr(self, name)]
        check.that(len(stated) < 2, "traits", " and ".join(stated), "must be one way to send tokens or weights")
        check.done()

    @property
    def exchanges(self) -> bool:
        """Whether tokens are sent, so that something may run beside it or go before it."""
        return not self.moves

    @property
    def sends_otherwise(self) -> bool:
        """Whether no all-to-all brings tokens to experts, or none that traits describe."""
        return self.moves or bool(self.traffic)

    @property
    def levels_load(self) -> bool:
        """Whether every rank computes as many tokens as the others, whatever experts they choose."""
        return self.moves


DISPATCHERS: dict[str, Dispatcher] = {
    kind.name: kind
    for kind in (
        Dispatcher(name=ALLTOALL, token="", searched="always", runs=True),
        Dispatcher(name="allgather", token="epag", gathers=True, runs=True),
        Dispatcher(name="deduplicated", token="epdedup", once=True, searched="always", hidden=True, runs=True),
        Dispatcher(name="hierarchical", token="ep2h", by_level=True, runs=True),
        Dispatcher(name="move-experts", token="epmove", moves=True, searched="loads", runs=True),
    )
}
"""The dispatchers by name, in the order in which searches try them; columns hold the number of each."""


def searched_dispatchers(*, loads: bool = False) -> tuple[str, ...]:
    """Names of the dispatchers that a search tries unasked.

    Args:
        loads: whether a load of experts is stated.
    """
    tried = ("always", "loads") if loads else ("always",)
    return tuple(kind.name for kind in DISPATCHERS.values() if kind.searched in tried)


def dispatcher_code(name: str) -> int:
    """The number of a dispatcher in columns.

    Args:
        name: the name of the dispatcher.
    """
    return list(DISPATCHERS).index(name)


def codes_with(trait: Trait) -> tuple[int, ...]:
    """Numbers of the dispatchers that have a trait.

    Args:
        trait: asked for.
    """
    return _codes_with(trait, tuple(DISPATCHERS.values()))


@lru_cache(maxsize=64)
def _codes_with(trait: Trait, kinds: tuple[Dispatcher, ...]) -> tuple[int, ...]:
    return tuple(code for code, kind in enumerate(kinds) if getattr(kind, trait))
