"""Who computes it: strategies cut a layer's operators into local work, collectives and bytes kept.

The catalogues: a strategy is one file of this folder and one line here. A plan may name others (`specs.strategy`),
which are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from meshwright.catalogue import Catalogue
from meshwright.errors import InputError, Problem
from meshwright.specs.dispatchers import DISPATCHERS, Dispatcher
from meshwright.specs.row import expert_tokens
from meshwright.specs.shardings import SHARDINGS, ShardingKind
from meshwright.strategies.base import ContextStrategy, TensorStrategy, TokenTraffic, WeightPassing
from meshwright.strategies.gathered import Gathered, Tree
from meshwright.strategies.ring import Burst, Ring, Striped
from meshwright.strategies.ulysses import Ulysses

if TYPE_CHECKING:
    from meshwright.strategies.compression import Compression

TENSORS: Catalogue[TensorStrategy] = Catalogue(
    __name__,
    {
        "1d": "tensor_1d:OneDimension",
        "2d": "tensor_2d:TwoDimensions",
        "25d": "tensor_2d:Deep",
        "3d": "tensor_3d:ThreeDimensions",
        "heads": "heads:Heads",
    },
)
"""Tensor strategies by name, `file:Class`; the first is what a plan has that names none."""

COMPRESSIONS: Catalogue[Compression] = Catalogue(
    __name__,
    {
        "powersgd": "power_sgd:PowerSgd",
        "topk": "top_k:TopK",
        "onebit": "one_bit:OneBit",
    },
)
"""Ways to make gradients small by name."""

PASSINGS: Catalogue[WeightPassing] = Catalogue(
    __name__,
    {
        "ring": "weight_ring:WeightRing",
    },
)
"""Ways of sharded weights to other ranks besides collectives, by name; `specs.shardings` has the words of plans."""

DISPATCHES: Catalogue[TokenTraffic] = Catalogue(__name__, {})
"""Traffic of dispatchers that `specs.dispatchers` has no traits for, by name."""

CONTEXTS: dict[str, ContextStrategy] = {
    strategy.name: strategy
    for strategy in (
        Ulysses(),
        Ring(),
        Gathered(),
        Striped(),
        Burst(),
        Tree(),
    )
}
"""Kinds of context parallelism by name, innermost level first."""


def register(
    strategy: TensorStrategy | ContextStrategy | WeightPassing | ShardingKind | Dispatcher | TokenTraffic,
) -> None:
    """Add a strategy of one's own: plans, estimates, searches and the command line know it then.

    A kind of data sharding is a record; one whose weights travel in a way of their own needs that way, too. So is a
    dispatcher of experts, and one with traffic that no trait says needs that traffic.

    Args:
        strategy: the strategy with a name that no other one of its family has.

    Raises:
        InputError: the name is taken, or the one-line form of plans cannot hold it.
    """
    known: MutableMapping[str, Any] = next(
        found
        for kind, found in (
            (TensorStrategy, TENSORS),
            (ContextStrategy, CONTEXTS),
            (WeightPassing, PASSINGS),
            (ShardingKind, SHARDINGS),
            (Dispatcher, DISPATCHERS),
            (TokenTraffic, DISPATCHES),
        )
        if isinstance(strategy, kind)
    )
    name, problems = strategy.name, []
    if name in known:
        why, fix = "a strategy of that name exists", "choose another name"
        problems.append(Problem(what=f"strategy {name}", why=why, fix=fix, field="strategy"))
    letters = "[a-z](?:[a-z0-9]*[a-z])?" if known is SHARDINGS else "[a-wyz0-9]*[a-wyz]"
    if isinstance(strategy, Dispatcher):
        problems += _token_problems(strategy)
    elif not re.fullmatch(letters, name):
        why, fix = "names have letters but x, and digits before a last letter", "choose another name"
        if known is SHARDINGS:
            why = "names of data shardings begin and end with a letter, and have letters and digits between"
        problems.append(Problem(what=f"strategy {name!r}", why=why, fix=fix, field="strategy"))
    if problems:
        raise InputError(problems)
    known[name] = strategy


def _token_problems(dispatcher: Dispatcher) -> Iterator[Problem]:
    """What the one-line form of plans cannot hold of a dispatcher's token."""
    token, field = dispatcher.token, "strategy"
    if token in expert_tokens():
        why, fix = "plans say something else by it", "choose another one"
        yield Problem(what=f"dispatcher {dispatcher.name} with the token {token}", why=why, fix=fix, field=field)
    if not re.fullmatch("ep[a-z][a-z0-9]*", token):
        why = "tokens of experts begin with ep and a letter, and have letters and digits"
        fix = "choose one such as eptree"
        yield Problem(what=f"dispatcher {dispatcher.name} with the token {token!r}", why=why, fix=fix, field=field)
