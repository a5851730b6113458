"""Attention of sequences split over 8 ranks: as on one device, and with the bytes that strategies price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.grid import DeviceGrid
from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.kernels.compute import score_pairs
from meshwright.ops.layers import layer_work
from meshwright.runtime.devices import jax_precision
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerSpec
from meshwright.specs.operators import CoreAttention
from meshwright.strategies.context import shard_attention
from meshwright.zoo.attention import mixed
from meshwright.zoo.token_order import in_rank_order
from tests.strategies.columns import columns

SAMPLES, LENGTH, ELEMENT = 2, 64, 8
SPEC = Attention(heads=16, kv_heads=8, head_dim=4)
HLO = {
    "all_to_all": "all-to-all",
    "send": "collective-permute",
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
}
Levels = tuple[tuple[str, int], ...]
LEVELS: tuple[Levels, ...] = (
    (("a2a", 8),),
    (("p2p", 8),),
    (("ag", 8),),
    (("striped", 8),),
    (("burst", 8),),
    (("tree", 8),),
    (("a2a", 4), ("p2p", 2)),
    (("a2a", 2), ("ag", 4)),
    (("a2a", 2), ("burst", 4)),
)


def priced(levels: Levels, phase: str) -> dict[str, float]:
    """Bytes of the results of each kind of collective in one pass on one rank."""
    work = layer_work(LayerSpec(attention=SPEC, mlp=DenseMlp(ffn_hidden=1, gated=False)), 64, "flash")
    (op,) = (op for op in work.ops if isinstance(op, CoreAttention))
    rows = columns(seq_len=LENGTH, mbs=SAMPLES, **dict(levels))
    local = shard_attention(op, rows, float(score_pairs(LENGTH, LENGTH)), float(ELEMENT), materialised=False)
    found: dict[str, float] = {}
    for call in local.calls:
        if call.phase == phase:
            size = float(np.sum(np.asarray(call.payload_bytes) * np.asarray(call.repeats)))
            size /= dict(levels)[call.group.removeprefix("cp_")] if call.kind == "reduce_scatter" else 1
            found[HLO[call.kind]] = found.get(HLO[call.kind], 0.0) + size
    return {kind: size for kind, size in found.items() if size}


def run_on(grid: DeviceGrid, run: Callable[..., Any], *given: Any) -> tuple[Any, dict[str, float]]:
    """Results of a program on 8 ranks, and bytes of the results of its collectives."""
    compiled = jax.jit(run).lower(*given).compile()
    return compiled(*given), dict(count_collectives(compiled.as_text()).result_bytes)


@pytest.mark.parametrize(
    ("levels", "causal", "window"),
    [
        *((levels, True, None) for levels in LEVELS),
        ((("p2p", 8),), False, None),
        ((("p2p", 8),), True, 5),
        ((("striped", 8),), True, 5),
        ((("burst", 8),), False, None),
        ((("tree", 8),), True, 5),
    ],
)
def test_attention_of_8_ranks_is_that_of_one_and_sends_what_is_priced(
    levels: Levels, causal: bool, window: int | None
) -> None:
    """Forward and backward are programs of their own, as a pipeline runs them."""
    spec = Attention(heads=16, kv_heads=8, head_dim=4, causal=causal, window=window)
    grid = DeviceGrid.of(context=levels)
    names, sizes = zip(*grid.sizes, strict=True)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)
    split = NamedSharding(mesh, PartitionSpec(None, grid.tokens))
    with jax_precision("fp64"):
        q, k, v, slope = (
            jax.random.normal(jax.random.key(seed), (SAMPLES, LENGTH, heads, spec.head_dim))
            for seed, heads in enumerate((spec.heads, spec.kv_heads, spec.kv_heads, spec.heads))
        )
        expected, pullback = jax.vjp(lambda *given: mixed(spec, None, *given), q, k, v)
        *operands, ranks_slope = jax.device_put([in_rank_order(grid, one) for one in (q, k, v, slope)], split)

        def forward(*given: jax.Array) -> tuple[jax.Array, Any]:
            return jax.vjp(lambda *own: jax.lax.with_sharding_constraint(mixed(spec, grid, *own), split), *given)

        (found, there), sent = run_on(grid, forward, *operands)
        gradients, returned = run_on(
            grid,
            lambda pull, slope: [jax.lax.with_sharding_constraint(one, split) for one in pull(slope)],
            there,
            ranks_slope,
        )
        for one, other in zip((found, *gradients), (expected, *pullback(slope)), strict=True):
            np.testing.assert_allclose(one, in_rank_order(grid, other), rtol=1e-9, atol=1e-12)
    for phase, bytes_ in (("forward", sent), ("backward", returned)):
        assert {kind: pytest.approx(size, rel=0.01) for kind, size in bytes_.items()} == priced(levels, phase), phase


def test_every_rank_of_a_causal_ring_computes_half_of_the_blocks_of_others() -> None:
    """Of 8 ranks: 3 of 4 pairs of pieces of its own, 2 of 4 of each other; forward two products a pair."""
    grid = DeviceGrid.of(context=(("p2p", 8),))
    program = str(jax.make_jaxpr(lambda *given: mixed(SPEC, grid, *given))(*(np.ones((1, 64, 8, 4)),) * 3))
    assert program.count("dot_general[") == 2 * (3 + 7 * 2)
