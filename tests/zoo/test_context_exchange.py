"""Attention of sequences split over 8 ranks: as on one device, and with the bytes that strategies price forward."""

from __future__ import annotations

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
from tests.strategies.columns import columns

SAMPLES, LENGTH, ELEMENT = 2, 64, 8
SPEC = Attention(heads=16, kv_heads=8, head_dim=4)
HLO = {"all_to_all": "all-to-all", "send": "collective-permute", "all_gather": "all-gather"}


def priced(levels: tuple[tuple[str, int], ...]) -> dict[str, float]:
    """Bytes of the results of each kind of collective in a forward pass on one rank."""
    work = layer_work(LayerSpec(attention=SPEC, mlp=DenseMlp(ffn_hidden=1, gated=False)), 64, "flash")
    (op,) = (op for op in work.ops if isinstance(op, CoreAttention))
    rows = columns(seq_len=LENGTH, mbs=SAMPLES, **dict(levels))
    local = shard_attention(op, rows, float(score_pairs(LENGTH, LENGTH)), float(ELEMENT), materialised=False)
    found: dict[str, float] = {}
    for call in local.calls:
        if call.phase == "forward":
            size = float(np.sum(np.asarray(call.payload_bytes) * np.asarray(call.repeats)))
            found[HLO[call.kind]] = found.get(HLO[call.kind], 0.0) + size
    return {kind: size for kind, size in found.items() if size}


@pytest.mark.parametrize(
    "levels", [(("a2a", 8),), (("p2p", 8),), (("ag", 8),), (("a2a", 4), ("p2p", 2)), (("a2a", 2), ("ag", 4))]
)
def test_attention_of_8_ranks_is_that_of_one_and_sends_what_is_priced(levels: tuple[tuple[str, int], ...]) -> None:
    grid = DeviceGrid.of(context=levels)
    names, sizes = zip(*grid.sizes, strict=True)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)
    split = NamedSharding(mesh, PartitionSpec(None, grid.tokens))
    with jax_precision("fp64"):
        q, k, v = (
            jax.random.normal(jax.random.key(seed), (SAMPLES, LENGTH, heads, SPEC.head_dim))
            for seed, heads in enumerate((SPEC.heads, SPEC.kv_heads, SPEC.kv_heads))
        )
        run = jax.jit(lambda *given: mixed(SPEC, grid, *given), out_shardings=split)
        given = jax.device_put((q, k, v), split)
        compiled = run.lower(*given).compile()
        np.testing.assert_allclose(compiled(*given), mixed(SPEC, None, q, k, v), rtol=1e-9, atol=1e-12)
    sent = count_collectives(compiled.as_text()).result_bytes
    assert {kind: pytest.approx(size, rel=0.01) for kind, size in sent.items()} == priced(levels)
