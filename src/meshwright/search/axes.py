"""The axes of a homogeneous plan: what `--pin` and `--forbid` take, what a search goes through by default.

One table for the grid, the options, the tuners and the documentation; words of strategies and schedules are those of
their catalogues, read when they are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from meshwright.schedules import PLAN_SCHEDULES
from meshwright.search.space import Space
from meshwright.shapes import Bool, Int
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS, Dispatcher, searched_dispatchers
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import (
    HOT_EXPERTS,
    HotExperts,
    PlanRow,
    about_hot_experts,
    expert_tokens,
    offload_tokens,
)
from meshwright.specs.shardings import SHARDINGS, plain_shardings, searched_shardings
from meshwright.specs.strategy import EXPERT_OVERLAPS, RECOMPUTE_MODULES, TENSOR_OVERLAPS, ExpertOverlap
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS, TENSORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One choice that plans differ in."""

    name: str
    default: str
    """Values that a search goes through unless others are named, in words."""
    words: Callable[[], Sequence[str]] | None = None
    """Legal values; None for degrees and counts, which are whole numbers from 1 on."""
    neutral: str | int | None = 1
    """What the axis is fixed to when it is forbidden as a whole; None where a plan needs one to be named."""
    other_names: tuple[str, ...] = ()
    token: Callable[[str], str] | None = None
    """The token of a word in the one-line form of a plan that states this axis alone; None where there is none."""

    @property
    def counted(self) -> bool:
        """Whether its values are whole numbers."""
        return self.words is None

    def values(self) -> tuple[str, ...]:
        """Legal words."""
        return tuple(self.words()) if self.words else ()


ExchangeOrder = Literal["shared", "first"]
"""Order on links that exchanges of tokens and gradients take at once: each at half its rate, or exchanges first."""
EXCHANGE_ORDERS: tuple[ExchangeOrder, ...] = get_args(ExchangeOrder)
Way = tuple[str, ExpertOverlap, HotExperts, ExchangeOrder]
PLAIN_WAY: Way = (ALLTOALL, "none", "kept", "shared")
"""What a plan without experts has, and the first of `ways`."""
WAY_AXES = ("dispatcher", "ep_overlap", "hot_experts", "ep_order")
"""Axes that a way has a value of, in order."""
PREFETCHES = (1, 0, 2)
"""Layers whose weights are gathered ahead of the one at work: the next one, none for the memory of one, or two."""
SEARCHED_OVERLAPS: tuple[ExpertOverlap, ...] = ("none", "paired-wgrad")
"""What a search lets run beside exchanges unless others are named, pairs with a dispatcher that is `hidden` alone: of
two dispatchers the one that sends less hides more."""
_PAIRED = np.array([beside.startswith("paired") for beside in EXPERT_OVERLAPS])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WayColumns:
    """What ways say, by their numbers."""

    dispatcher: Int[np.ndarray, "ways"]
    """Dispatcher of each way, as `dispatcher_code`."""
    overlap: Int[np.ndarray, "ways"]
    """Index into EXPERT_OVERLAPS."""
    shadowed: Int[np.ndarray, "ways"]
    placed: Bool[np.ndarray, "ways"]
    first: Bool[np.ndarray, "ways"]
    """Exchanges go before gradients."""


def ways() -> tuple[Way, ...]:
    """How tokens reach their experts, what runs beside, what is done about hot experts, and whether exchanges go before
    gradients."""
    return _ways_with(tuple(DISPATCHERS.values()))


@lru_cache(maxsize=16)
def _ways_with(dispatchers: tuple[Dispatcher, ...]) -> tuple[Way, ...]:
    every = itertools.product(dispatchers, EXPERT_OVERLAPS, HOT_EXPERTS, EXCHANGE_ORDERS)
    return tuple(
        (how.name, beside, hot, order) for how, beside, hot, order in every if how.exchanges or order == "shared"
    )


def way_columns() -> WayColumns:
    """What `ways` say, by their numbers."""
    return _columns_of(ways())


@lru_cache(maxsize=16)
def _columns_of(found: tuple[Way, ...]) -> WayColumns:
    names = list(DISPATCHERS)
    return WayColumns(
        dispatcher=np.array([names.index(how) for how, *_ in found]),
        overlap=np.array([EXPERT_OVERLAPS.index(beside) for _, beside, *_ in found]),
        shadowed=np.array([about_hot_experts(hot).get("shadowed", 0) for *_, hot, _ in found]),
        placed=np.array([hot == "balanced" for *_, hot, _ in found]),
        first=np.array([order == "first" for *_, order in found]),
    )


def searched_values(*, loads: bool = False) -> tuple[tuple[str, ...], ...]:
    """Values of `WAY_AXES` that a search goes through unless others are named.

    Args:
        loads: whether a load of experts is stated, without which nothing is gained for hot ones.
    """
    return searched_dispatchers(loads=loads), SEARCHED_OVERLAPS, HOT_EXPERTS if loads else ("kept",), ("shared",)


def _token_of(field: str, value: str | int) -> str:
    """The token of plans that states a value of a field; empty where none does."""
    return next((token for token, stated in expert_tokens().items() if stated == (field, value)), "")


def recompute_words(model: ModelSpec, workload: Workload) -> tuple[str, ...]:
    """Ways to recompute that a search goes through unless others are named.

    Selective recompute repeats what costs few seconds for the bytes it frees. That is the core of attention where a
    kernel keeps its scores. A flash kernel keeps none: there it is the projections of latent attention with the norm
    before them, the dense layers of a mixture and the activations of experts, what users of Megatron-LM name for such
    models (`--recompute-modules`; Megatron-Bridge's recipes of DeepSeek-V3, 2026).

    Args:
        model: says which modules there are.
        workload: the workload with its attention kernel.
    """
    return ("none", selective_words(model, workload.attention_kernel)[0], "block", "full")


def selective_words(model: ModelSpec, kernel: str = "flash") -> tuple[str, ...]:
    """What selective recompute may repeat, the most first.

    Args:
        model: says which modules there are.
        kernel: the kernel of attention.
    """
    if kernel == "materialised":
        return ("sel",)
    layers = model.kinds()
    latent = any(hasattr(layer.attention, "q_rank") for layer in layers)
    mixed = model.is_moe and not all(layer.mlp.routed_experts for layer in layers)
    plain = (*(("mla_up_proj",) if latent else ()), *(("mlp",) if latent and mixed else ()))
    more = (*(("layernorm",) if latent else ()), *plain, *(("moe_act",) if model.is_moe else ()))
    found = ("-".join(("sel", *modules)) for modules in dict.fromkeys((more, plain)))
    return tuple(found)


def is_recompute(word: str) -> bool:
    """Whether a word is a way to recompute."""
    kind, *modules = word.split("-")
    return word in AXES["recompute"].values() or (kind == "sel" and set(modules) <= set(RECOMPUTE_MODULES))


def _context_kinds() -> tuple[str, ...]:
    """No context parallelism, each kind alone, and exchanges of heads inside a ring of what they leave."""
    alone = sorted(CONTEXTS, key=lambda name: name != "p2p")
    return ("none", *alone, *(f"{name}+p2p" for name, kind in CONTEXTS.items() if kind.swaps_heads))


def _degree_names(word: str) -> tuple[str, ...]:
    """What frameworks call a degree: `tensor_parallel_size`, `tensor_model_parallel_size`."""
    return (f"{word}_parallel", f"{word}_parallel_size", f"{word}_model_parallel_size")


def _shardings_tried() -> str:
    """The kinds that a search tries unasked, and those that it tries where they are named."""
    grouped = [name for name in searched_shardings() if SHARDINGS[name].grouped]
    tried = ", ".join([*plain_shardings(), *(f"{name} for every group size" for name in grouped)])
    named = [name for name in SHARDINGS if name not in searched_shardings()]
    return f"{tried}; {' and '.join(named)} where they are named"


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            name="tp",
            default="every degree that divides heads, feed-forward widths and (with cp) the sequence",
            other_names=_degree_names("tensor"),
        ),
        Axis(name="cp", default="every degree that divides the sequence", other_names=_degree_names("context")),
        Axis(
            name="pp",
            default="every divisor of the devices up to the layers",
            other_names=_degree_names("pipeline"),
        ),
        Axis(
            name="vpp",
            default="1, and every number of chunks that the schedule allows",
            other_names=("vp", "virtual_pipeline_model_parallel_size"),
        ),
        Axis(
            name="ep",
            default="every divisor of the experts; ep x etp folds over tp x cp x dp",
            other_names=_degree_names("expert"),
        ),
        Axis(name="etp", default="every divisor of the expert width", other_names=_degree_names("expert_tensor")),
        Axis(
            name="dispatcher",
            default=f"{', '.join(searched_dispatchers())}; others where they are named",
            words=lambda: tuple(DISPATCHERS),
            neutral=ALLTOALL,
            token=lambda word: _token_of("dispatcher", word),
        ),
        Axis(
            name="ep_overlap",
            default="none; paired-wgrad with deduplicated where chunks or micro-batches of a worker alternate",
            words=lambda: EXPERT_OVERLAPS,
            neutral="none",
            token=lambda word: _token_of("ep_overlap", word),
        ),
        Axis(
            name="hot_experts",
            default="kept; with a load of experts: balanced, and copies of 1, 2, 4, 8 of each layer",
            words=lambda: HOT_EXPERTS,
            neutral="kept",
            token=lambda word: _token_of("hot_experts", word),
        ),
        Axis(
            name="ep_order",
            default="shared; first, exchanges of tokens before gradients (Lina), where it is named",
            words=lambda: EXCHANGE_ORDERS,
            neutral="shared",
            token=lambda word: _token_of("prioritised", word == "first"),
        ),
        Axis(name="dp", default="what is left of the devices", other_names=_degree_names("data")),
        Axis(
            name="mbs",
            default="every divisor of the sequences of a data-parallel rank",
            other_names=("micro_batch", "micro_batch_size"),
        ),
        Axis(
            name="sharding",
            default=_shardings_tried(),
            words=lambda: tuple(SHARDINGS),
            neutral="z0",
            other_names=("zero", "zero_stage"),
            token=str,
        ),
        Axis(
            name="prefetch",
            default="1; 0 and 2, layers gathered ahead of the one at work (FSDP), where they are named",
            words=lambda: tuple(map(str, PREFETCHES)),
            neutral="1",
            token=lambda word: "" if word == "1" else f"prefetch{word}",
        ),
        Axis(
            name="recompute",
            default="none, full, block of 1/4, 1/2, 3/4 of the largest chunk, selective: norms, latent projections, "
            "dense layers of a mixture and activations of experts where there are some, else the attention core",
            words=lambda: ("none", "sel", "block", "full"),
            neutral="none",
            other_names=("rc", "recomputation", "activation_checkpointing"),
            token=lambda word: f"rc-{word}",
        ),
        Axis(
            name="tp_overlap",
            default="bulk, ring; halves, beside the other half of a micro-batch (Domino), where it is named",
            words=lambda: TENSORS["1d"].overlaps,
            neutral="bulk",
            other_names=("overlap",),
            token=lambda word: {str(overlap): token for overlap, token in TENSOR_OVERLAPS.items()}.get(word, ""),
        ),
        Axis(
            name="schedule",
            default="1f1b, gpipe, interleaved in the smallest groups without a short one; others where they are named",
            words=lambda: PLAN_SCHEDULES,
            neutral=None,
        ),
        Axis(
            name="cp_kind",
            default="p2p, a2a, ag, and a2a inside p2p for every split, others where they are named; none where cp is 1",
            words=_context_kinds,
            neutral="none",
        ),
        Axis(
            name="offload",
            default="none; what is named otherwise, or all of it with `--offload auto`",
            words=lambda: ("none", *offload_tokens()),
            neutral="none",
            token=lambda word: "" if word == "none" else f"off-{word}",
        ),
        Axis(
            name="tensor",
            default="1d; others where they are named, for plans with tensor groups",
            words=lambda: tuple(TENSORS),
            neutral="1d",
        ),
    )
}
"""The axes by name, in the order in which they are listed."""


def ways_of(space: Space, load: ExpertLoad | None) -> Int[np.ndarray, "ways"]:
    """Codes of the ways to reach experts on other ranks.

    With a load, experts may also move to the tokens: no rank is fuller than another then.
    """
    searched = searched_values(loads=load is not None)
    if load is not None:
        dispatchers, overlaps, _, orders = searched
        # A rank that holds copies of all experts exchanges nothing, as where they move.
        hot = tuple(word for word in HOT_EXPERTS if about_hot_experts(word).get("shadowed", 0) < load.width)
        searched = (dispatchers, overlaps, hot, orders)
    wanted = [space.pinned(axis) or free for axis, free in zip(WAY_AXES, searched, strict=True)]
    free = space.pinned("dispatcher") is None and space.pinned("ep_overlap") is None
    stated = space.pinned("hot_experts") is not None
    found = [
        number
        for number, (how, beside, about, order) in enumerate(ways())
        if how in wanted[0]
        and beside in wanted[1]
        and about in wanted[2]
        and order in wanted[3]
        and (beside == "none" or DISPATCHERS[how].exchanges)
        and not (free and beside != "none" and not DISPATCHERS[how].hidden)
        and not (not stated and about != "kept" and (not DISPATCHERS[how].exchanges or beside != "none"))
    ]
    return np.array(found, dtype=np.int64)


DEGREE_OF = {**dict.fromkeys(("tp_overlap", "tensor"), "tp"), "cp_kind": "cp", **dict.fromkeys(WAY_AXES, "ep")}
"""Axes that say how the ranks of a group work together: the degree of that group. A plan without one has the neutral
value, so that a space held to others has groups in every plan."""


def only_in_groups(space: Space, degree: str) -> bool:
    """Whether a space is held to a way to work together that plans with one rank of that degree do not have.

    Args:
        space: pinned axes.
        degree: `tp`, `cp` or `ep`.
    """
    return any(beyond_neutral(axis, space.pinned(axis)) for axis, of in DEGREE_OF.items() if of == degree)


def beyond_neutral(axis: str, values: Sequence[object] | None) -> bool:
    """Whether values of an axis leave out the one that plans without its group have.

    Args:
        axis: any.
        values: the values that are allowed; None where it is free.
    """
    return values is not None and AXES[axis].neutral not in values


def paired_ways(numbers: Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Ways, by number, whose exchanges run beside another micro-batch."""
    return _PAIRED[way_columns().overlap[numbers]]


def first_ways(numbers: Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Ways, by number, whose exchanges go before gradients."""
    return way_columns().first[numbers]


def searched_ways(space: Space, load: ExpertLoad | None) -> list[Way]:
    """Dispatcher, overlap, treatment of hot experts and order of exchanges that a search goes through.

    Args:
        space: what is pinned of them.
        load: the load of experts, where one is stated.
    """
    every = ways()
    return [every[number] for number in ways_of(space, load).tolist()]


def only_way(space: Space) -> int:
    """The first way that a space is held to, plain exchanges with nothing beside them where it is free."""
    wanted = tuple((space.pinned(axis) or (PLAIN_WAY[place],))[0] for place, axis in enumerate(WAY_AXES))
    return next(number for number, way in enumerate(ways()) if way == wanted)


def way_of(row: PlanRow) -> int:
    """The way of a plan, by number.

    Args:
        row: the plan.
    """
    order: ExchangeOrder = "first" if row.prioritised else "shared"
    return ways().index((row.dispatcher, row.ep_overlap, row.hot_experts, order))
