"""Tokens and experts on 8 devices: every way ends where one device ends, and sends the bytes that are priced."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.grid import DeviceGrid
from meshwright.compiler.sharding.hlo_collectives import Collectives, count_collectives
from meshwright.kernels.exchange import Routing
from meshwright.kernels.expert_load import counted_shares, placed_by_load, rank_shares
from meshwright.runtime.devices import jax_precision
from meshwright.specs.layers.base import LayerContext
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.operators import Exchange, Linear
from meshwright.specs.strategy import ExpertParallel
from meshwright.strategies.base import WeightBytes
from meshwright.strategies.expert import exchange_calls, shard_experts
from meshwright.zoo.expert_exchange import kept_exchanges, through_experts
from meshwright.zoo.experts import OF_EACH, expert_weights, experts, routed, slots
from meshwright.zoo.gates import Gate
from meshwright.zoo.splits import expert_axes
from meshwright.zoo.token_order import in_rank_order, in_sample_order
from tests.strategies.columns import columns

HIDDEN, WIDTH, EXPERTS, SAMPLES, LENGTH, ELEMENT = 16, 24, 16, 16, 32, 8
SPEC = MoeMlp(experts=EXPERTS, top_k=2, ffn_hidden=WIDTH, gated=True)
SWITCH = MoeMlp(experts=EXPERTS, top_k=1, ffn_hidden=WIDTH, gated=False)
EP = 8
GRIDS = {
    "data": DeviceGrid.of(data=8, expert=8),
    "two levels": DeviceGrid.of(data=8, expert=8, domain=4),
    "folded": DeviceGrid.of(data=2, context=(("p2p", 2),), tensor=2, expert=8),
    "parts": DeviceGrid.of(data=4, tensor=2, expert=4, expert_tensor=2),
    "all ranks": DeviceGrid.of(data=4, tensor=2, expert=8),
}


def both(
    spec: MoeMlp,
    grid: DeviceGrid,
    how: ExpertParallel,
    *,
    gate: Gate = "top-k",
    capacity: float | None = 2.0,
    hidden: int = HIDDEN,
    length: int = LENGTH,
    again: bool = False,
) -> tuple[float, Collectives]:
    """Largest difference of loss and gradients from one device, and what the compiled program sends."""
    with jax_precision("fp64"):
        x = jax.random.normal(jax.random.key(1), (SAMPLES, length, hidden))
        weights = expert_weights(spec, hidden, jax.random.key(0), 1.0)
        # Experts 3 and 5 are hot.
        weights["router"] = weights["router"].at[:, jnp.array([3, 5])].multiply(3.0)
        keys = jax.vmap(jax.random.key)(jnp.arange(SAMPLES))

        def loss(weights: dict[str, jax.Array], x: jax.Array, grid: DeviceGrid | None) -> jax.Array:
            run = partial(experts, spec, capacity_factor=capacity, grid=grid, how=how, gate=gate, keys=keys)
            made, balance = (jax.checkpoint(run, policy=kept_exchanges(how)) if again else run)(weights, x)
            return (made**2).sum() + balance.mean()

        alone = jax.jit(jax.value_and_grad(partial(loss, grid=None), (0, 1)))(weights, x)
        order = slots(how.placement or range(spec.experts))
        own, held_by = (
            {name: values[order] if name in OF_EACH else values for name, values in every.items()}
            for every in (weights, alone[1][0])
        )
        weights, alone = own, (alone[0], (held_by, alone[1][1]))
        names, sizes = zip(*grid.sizes, strict=True)
        mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)
        held = grid.tokens if how.drop_duplicates else (*grid.tokens, *grid.tensor)
        split = NamedSharding(mesh, PartitionSpec(grid.data or None, held or None))
        placed = {
            name: NamedSharding(mesh, grid.spec(expert_axes(name), matrix.shape)) for name, matrix in weights.items()
        }
        step = jax.jit(jax.value_and_grad(partial(loss, grid=grid), (0, 1)), out_shardings=(None, (placed, split)))
        given = jax.device_put((weights, in_rank_order(grid, x)), (placed, split))
        compiled = step.lower(*given).compile()
        value, (of_weights, of_tokens) = compiled(*given)
        there = (value, (of_weights, in_sample_order(grid, of_tokens)))
        apart = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), there, alone)
        size = max(float(np.abs(np.asarray(leaf)).max()) for leaf in jax.tree.leaves(alone))
    return max(jax.tree.leaves(apart)) / size, count_collectives(compiled.as_text())


@pytest.mark.parametrize(
    ("spec", "gate", "grid"),
    [
        (SPEC, "gshard", "data"),
        (SWITCH, "switch", "folded"),
        (SPEC, "expert-choice", "parts"),
        (SPEC, "gshard", "folded"),
    ],
)
def test_gates_with_capacity_route_alike_on_8_devices(spec: MoeMlp, gate: Gate, grid: str) -> None:
    assert both(spec, GRIDS[grid], ExpertParallel(), gate=gate, capacity=1.0)[0] < 1e-9


@pytest.mark.parametrize(
    ("how", "grid"),
    [
        (ExpertParallel(dispatcher="hierarchical"), "two levels"),
        (ExpertParallel(dispatcher="hierarchical"), "parts"),
        (ExpertParallel(dispatcher="move-experts"), "folded"),
        (ExpertParallel(dispatcher="move-experts"), "parts"),
        (ExpertParallel(shadowed=3), "folded"),
        (ExpertParallel(shadowed=3), "parts"),
        (ExpertParallel(overlap_degree=4), "parts"),
        (ExpertParallel(overlap_degree=4, prioritised=True), "folded"),
        (ExpertParallel(overlap_degree=2, dispatcher="hierarchical"), "two levels"),
        (ExpertParallel(drop_duplicates=True), "folded"),
        (ExpertParallel(drop_duplicates=True, overlap_degree=2), "parts"),
        (ExpertParallel(dispatcher="deduplicated"), "two levels"),
        (ExpertParallel(dispatcher="deduplicated"), "folded"),
        (ExpertParallel(dispatcher="deduplicated"), "parts"),
        (ExpertParallel(dispatcher="deduplicated", shadowed=3), "two levels"),
        (ExpertParallel(dispatcher="allgather"), "data"),
        (ExpertParallel(dispatcher="allgather"), "folded"),
        (ExpertParallel(dispatcher="allgather"), "parts"),
        (ExpertParallel(dispatcher="allgather", drop_duplicates=True), "all ranks"),
    ],
)
def test_every_way_ends_where_one_device_ends(how: ExpertParallel, grid: str) -> None:
    assert both(SPEC, GRIDS[grid], how, capacity=None)[0] < 1e-9


def priced(how: str, shadowed: int = 0) -> dict[str, float]:
    """Bytes by kind of collective, forward and backward, as the calls of the strategy state them."""
    work = SPEC.work(LayerContext(hidden=HIDDEN, kernel="flash", dropout=False))
    rows = columns(ep=EP, dispatcher=how, mbs=SAMPLES // EP, seq_len=LENGTH, capacity=2.0, shadowed=shadowed)
    found: dict[str, float] = {}
    for op in work.ops:
        calls = ()
        if isinstance(op, Exchange):
            calls = exchange_calls(op, rows, Routing(copies=SPEC.top_k), ELEMENT)
        elif isinstance(op, Linear) and op.experts:
            calls = shard_experts(op, rows, SPEC.top_k, WeightBytes(ELEMENT, ELEMENT)).calls
        for call in calls:
            bytes_ = float(np.sum(np.asarray(call.payload_bytes) * np.asarray(call.repeats)))
            levels = 2 if call.by_level is not None and call.kind == "all_to_all" else 1
            found[call.kind] = found.get(call.kind, 0.0) + levels * bytes_
    return {kind: size for kind, size in found.items() if size}


@pytest.mark.parametrize(
    ("how", "grid"), [(ExpertParallel(), "data"), (ExpertParallel(dispatcher="hierarchical"), "two levels")]
)
def test_exchanges_of_the_compiled_program_have_the_priced_bytes(how: ExpertParallel, grid: str) -> None:
    sent = both(SPEC, GRIDS[grid], how)[1].result_bytes["all-to-all"]
    assert priced(how.dispatcher) == {"all_to_all": pytest.approx(sent, rel=0.01)}


def test_pieces_send_what_the_whole_does_in_as_many_exchanges() -> None:
    """Two exchanges forward and two backward, each in 2 pieces."""
    (_, whole), (_, pieces) = (both(SPEC, GRIDS["data"], ExpertParallel(overlap_degree=count)) for count in (1, 2))
    assert pieces.result_bytes["all-to-all"] == pytest.approx(whole.result_bytes["all-to-all"], rel=0.01)
    assert pieces.count["all-to-all"] == 2 * whole.count["all-to-all"]


def test_weights_that_move_have_the_priced_bytes() -> None:
    """Gradients are scattered once; weights are gathered for forward and again for backward.

    Where both are one program for CPUs, XLA merges the two gathers, so that half of what is priced is left.
    """
    plain, moved = (
        both(SPEC, GRIDS["data"], how)[1].result_bytes
        for how in (ExpertParallel(), ExpertParallel(dispatcher="move-experts"))
    )
    gathered = moved["all-gather"] - plain.get("all-gather", 0)
    scattered = moved["reduce-scatter"] * EP
    assert "all-to-all" not in moved
    wanted = priced("move-experts")
    assert wanted == {
        "all_gather": pytest.approx(2 * gathered, rel=0.01),
        "reduce_scatter": pytest.approx(scattered, rel=0.01),
    }


def test_weights_that_move_are_not_kept_for_backward() -> None:
    """Each of the three matrices is gathered twice in the program that is handed to XLA."""
    grid, how = GRIDS["data"], ExpertParallel(dispatcher="move-experts")
    weights = {
        name: matrix
        for name, matrix in expert_weights(SPEC, HIDDEN, jax.random.key(0), 1.0).items()
        if name in ("up", "down", "gate")
    }
    x = jnp.ones((EXPERTS, SAMPLES, 4, HIDDEN))
    both_gradients = jax.grad(lambda own, x: (through_experts(grid, own, x, how) ** 2).sum(), (0, 1))
    program = jax.make_jaxpr(both_gradients)(weights, x)
    assert str(program).count("all_gather[") == 6


def test_copies_of_hot_experts_are_sums_of_as_many_bytes_as_are_broadcast() -> None:
    """XLA has no broadcast from one rank: weights come as a sum with zeros, and gradients go back as one."""
    plain, shadowed = (both(SPEC, GRIDS["data"], ExpertParallel(shadowed=count))[1] for count in (0, 3))
    more = shadowed.result_bytes["all-reduce"] - plain.result_bytes["all-reduce"]
    assert more == pytest.approx(priced("alltoall", 3)["broadcast"], rel=0.01)


def once_bytes(top_k: int, hidden: int, length: int) -> float:
    """Bytes of two dispatches and two combines, forward and backward: what enters domains, and ranks inside them."""
    routing, copies_bytes = Routing(copies=top_k), SAMPLES / EP * length * top_k * hidden * ELEMENT
    return 4 * sum(float(routing.entered(parts)) / top_k * copies_bytes for parts in (2, EP))


def test_a_token_is_sent_once_to_a_domain_and_there_once_to_a_rank() -> None:
    """A token that visits 56 of 64 experts enters every rank; of such long rows the routing beside them is little."""
    hidden, length, top_k = 8192, 1, 56
    spec = MoeMlp(experts=64, top_k=top_k, ffn_hidden=4, gated=True)
    how = ExpertParallel(dispatcher="deduplicated")
    apart, sent = both(spec, GRIDS["two levels"], how, capacity=None, hidden=hidden, length=length)
    assert apart < 1e-9
    assert sent.result_bytes["all-to-all"] == pytest.approx(once_bytes(top_k, hidden, length), rel=0.01)


def test_more_visited_experts_cost_no_more_where_a_token_is_sent_once() -> None:
    few, many = (
        both(
            MoeMlp(experts=EXPERTS, top_k=top_k, ffn_hidden=WIDTH, gated=True),
            GRIDS["two levels"],
            ExpertParallel(dispatcher="deduplicated"),
            capacity=None,
        )[1].result_bytes["all-to-all"]
        for top_k in (2, 8)
    )
    assert few == many


def test_tensor_ranks_of_experts_gather_a_token_once_at_the_priced_bytes() -> None:
    """What grows with the width of tokens, each of which visits all four ranks."""
    top_k, widths = 56, (2 * HIDDEN, 4 * HIDDEN)
    spec = MoeMlp(experts=64, top_k=top_k, ffn_hidden=4, gated=True)
    found = [
        both(spec, GRIDS["parts"], ExpertParallel(dispatcher=name), capacity=None, hidden=width, length=4)
        for name in ("alltoall", "deduplicated")
        for width in widths
    ]
    assert max(apart for apart, _ in found) < 1e-9
    kinds = ("all-gather", "reduce-scatter")
    plain, once = (
        {kind: many.result_bytes[kind] - few.result_bytes[kind] for kind in kinds}
        for (_, few), (_, many) in (found[:2], found[2:])
    )
    rows = columns(tp=2, sp=True, ep=4, etp=2, mbs=SAMPLES // 4, seq_len=4, dispatcher="deduplicated")
    exchanges = (
        op
        for op in spec.work(LayerContext(hidden=HIDDEN, kernel="flash", dropout=False)).ops
        if isinstance(op, Exchange)
    )
    priced = dict.fromkeys(once, 0.0)
    for op in exchanges:
        for call in exchange_calls(op, rows, Routing(copies=top_k), ELEMENT):
            if call.group == "etp":
                kind = call.kind.replace("_", "-")
                parts = 2 if call.kind == "reduce_scatter" else 1
                priced[kind] += float(np.sum(np.asarray(call.payload_bytes))) / parts * (widths[1] - widths[0]) / HIDDEN
    assert once["all-gather"] < plain["all-gather"] / 8
    assert once == {kind: pytest.approx(size, rel=0.01) for kind, size in priced.items()}


def gathered_bytes(grid: str, how: ExpertParallel, hidden: int) -> dict[str, int]:
    """What a compiled program sends, by kind of collective."""
    apart, sent = both(SPEC, GRIDS[grid], how, capacity=None, hidden=hidden)
    assert apart < 1e-9
    return sent.result_bytes


@pytest.mark.parametrize(
    ("grid", "degrees"),
    [
        ("data", {"ep": 8, "mbs": SAMPLES // 8}),
        ("parts", {"tp": 2, "sp": True, "ep": 4, "etp": 2, "mbs": SAMPLES // 4}),
    ],
)
def test_all_ranks_gather_all_tokens_at_the_priced_bytes(grid: str, degrees: dict[str, int]) -> None:
    """What grows with the width of tokens: routing beside them is gathered, too. Nothing goes by all-to-all."""
    plain, gathered = (
        [gathered_bytes(grid, ExpertParallel(dispatcher=name), width) for width in (HIDDEN, 2 * HIDDEN)]
        for name in ("alltoall", "allgather")
    )
    assert not any("all-to-all" in sent for sent in gathered)
    rows = columns(seq_len=LENGTH, dispatcher="allgather", **degrees)
    ranks = {"ep": degrees["ep"], "etp": degrees.get("etp", 1)}
    work = SPEC.work(LayerContext(hidden=HIDDEN, kernel="flash", dropout=False))
    wanted = dict.fromkeys(("all-gather", "reduce-scatter"), 0.0)
    calls = (
        call
        for op in work.ops
        if isinstance(op, Exchange)
        for call in exchange_calls(op, rows, Routing(copies=SPEC.top_k), ELEMENT)
    )
    for call in calls:
        size = float(np.sum(np.asarray(call.payload_bytes)))
        if call.kind == "all_to_all":
            assert not size
        else:
            wanted[call.kind.replace("_", "-")] += size / (ranks[call.group] if call.kind == "reduce_scatter" else 1)
    # Weights, whose size grows with the width as well, are gathered and summed as where tokens are exchanged.
    kinds = {"all-gather": 0.0, "reduce-scatter": 0.0}
    grown = {kind: gathered[1].get(kind, 0) - gathered[0].get(kind, 0) for kind in kinds}
    assert grown == {kind: pytest.approx(size, rel=0.01) for kind, size in wanted.items()}, plain


TED = ExpertParallel(drop_duplicates=True)


def ted_bytes(hidden: int, **degrees: int) -> dict[str, float]:
    """Bytes by kind that DeepSpeed-TED is priced at where experts have room for every token: what a rank receives."""
    work = SPEC.work(LayerContext(hidden=hidden, kernel="flash", dropout=False))
    rows = columns(seq_len=LENGTH, capacity=EXPERTS / SPEC.top_k, **degrees)
    rows = replace(rows, whole_tokens=np.array([True]))
    found = dict.fromkeys(("all-to-all", "all-gather", "reduce-scatter"), 0.0)
    for op in work.ops:
        if isinstance(op, Exchange):
            for call in exchange_calls(op, rows, Routing(copies=SPEC.top_k), ELEMENT):
                parts = rows.etp if call.kind == "reduce_scatter" else 1
                size = np.asarray(call.payload_bytes) * np.asarray(call.repeats) / parts
                found[call.kind.replace("_", "-")] += float(np.sum(size))
    return found


@pytest.mark.parametrize(
    ("grid", "degrees"),
    [
        ("all ranks", {"tp": 2, "ep": 8, "mbs": SAMPLES // 4}),
        ("parts", {"tp": 2, "ep": 4, "etp": 2, "mbs": SAMPLES // 4}),
    ],
)
def test_tensor_ranks_send_their_part_and_gather_results_at_the_priced_bytes(
    grid: str, degrees: dict[str, int]
) -> None:
    """What grows with the width of tokens: routing beside them, and weights, are gathered as without experts."""
    (near, wide), (few, many) = zip(
        *(both(SPEC, GRIDS[grid], TED, capacity=EXPERTS / 2, hidden=hidden) for hidden in (HIDDEN, 2 * HIDDEN)),
        strict=True,
    )
    assert max(near, wide) < 1e-9
    grown = {kind: many.result_bytes.get(kind, 0) - few.result_bytes.get(kind, 0) for kind in ted_bytes(1, **degrees)}
    wanted = {kind: ted_bytes(2 * HIDDEN, **degrees)[kind] - ted_bytes(HIDDEN, **degrees)[kind] for kind in grown}
    assert grown == {kind: pytest.approx(size, rel=0.01) for kind, size in wanted.items()}


@pytest.mark.parametrize("grid", ["data", "parts"])
def test_results_that_are_kept_are_not_exchanged_again(grid: str) -> None:
    """A third of all exchanges of a layer that is computed again, as it is priced."""
    found = [both(SPEC, GRIDS[grid], ExpertParallel(stash_collectives=kept), again=True) for kept in (False, True)]
    assert max(apart for apart, _ in found) < 1e-9
    again, kept = (sent.result_bytes["all-to-all"] for _, sent in found)
    assert kept == pytest.approx(2 / 3 * again, rel=0.01)


def counted(spec: MoeMlp) -> np.ndarray:
    """Visits of each expert by the tokens that `both` sends."""
    with jax_precision("fp64"):
        weights = expert_weights(spec, HIDDEN, jax.random.key(0), 1.0)
        weights["router"] = weights["router"].at[:, jnp.array([3, 5])].multiply(3.0)
        index = routed(spec, weights, jax.random.normal(jax.random.key(1), (SAMPLES, LENGTH, HIDDEN)))
    return np.bincount(np.asarray(index).reshape(-1), minlength=spec.experts)


def test_experts_placed_by_load_fill_ranks_as_priced_and_send_nothing_more() -> None:
    """SmartMoE: weights stay in the slots of their ranks, so that only the exchange of tokens is left."""
    loads, ranks = counted(SPEC), 4
    shares = counted_shares((tuple(loads.tolist()),))
    placement = tuple(placed_by_load(shares, ranks)[0].tolist())
    assert placement != tuple(np.repeat(np.arange(ranks), EXPERTS // ranks).tolist())
    found = [both(SPEC, GRIDS["parts"], ExpertParallel(placement=ranks_of)) for ranks_of in ((), placement)]
    assert max(apart for apart, _ in found) < 1e-9
    assert found[0][1].result_bytes == found[1][1].result_bytes
    assert priced_in_parts() == {"all_to_all": pytest.approx(found[1][1].result_bytes["all-to-all"], rel=0.01)}
    arrived = loads[slots(placement)].reshape(ranks, -1).sum(axis=1)
    assert arrived.max() == pytest.approx(rank_shares(shares, ranks, placed=True)[0].max() * loads.sum())
    assert arrived.max() < loads.reshape(ranks, -1).sum(axis=1).max()


def priced_in_parts() -> dict[str, float]:
    """Bytes of all-to-alls on the grid in parts; a tensor rank sends its part of the tokens."""
    work = SPEC.work(LayerContext(hidden=HIDDEN, kernel="flash", dropout=False))
    rows = columns(tp=2, sp=True, ep=4, etp=2, mbs=SAMPLES // 4, seq_len=LENGTH, capacity=2.0)
    exchanges = (op for op in work.ops if isinstance(op, Exchange))
    calls = [call for op in exchanges for call in exchange_calls(op, rows, Routing(copies=SPEC.top_k), ELEMENT)]
    calls = [call for call in calls if call.kind == "all_to_all"]
    return {
        "all_to_all": sum(float(np.sum(np.asarray(call.payload_bytes) * np.asarray(call.repeats))) for call in calls)
    }
