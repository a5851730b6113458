"""Attention and experts on the ranks of a grid give what one device gives, with the collectives of their methods."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from meshwright.compiler.grid import DeviceGrid
from meshwright.runtime.devices import jax_precision
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.zoo.attention import mixed
from meshwright.zoo.experts import OF_EACH, expert_weights, through_experts
from meshwright.zoo.token_order import in_rank_order, order_on

SAMPLES, LENGTH, WIDTH = 4, 16, 8


def compiled(grid: DeviceGrid, fun: Any, *values: Any) -> tuple[Any, str]:
    """Results on the grid's devices, and the program they ran."""
    sizes = dict(grid.sizes)
    mesh = Mesh(np.array(jax.devices()[: grid.devices]).reshape(*sizes.values()), tuple(sizes))
    placed = jax.device_put(values, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    program = jax.jit(fun).lower(*placed).compile()
    return program(*placed), program.as_text()


def collectives(text: str, name: str) -> int:
    return len(re.findall(rf" {name}(?:-start)?\(", text))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    ("kind", "grid"),
    [
        ("collective-permute", DeviceGrid.of(data=2, context=(("p2p", 4),))),
        ("all-to-all", DeviceGrid.of(data=2, context=(("a2a", 4),))),
        ("all-gather", DeviceGrid.of(context=(("ag", 2),), tensor=4)),
        ("all-to-all", DeviceGrid.of(context=(("a2a", 2), ("p2p", 2)), tensor=2)),
    ],
    ids=["ring", "heads", "gathered", "heads and ring"],
)
def test_attention_over_context_ranks_is_that_of_one_device(kind: str, grid: DeviceGrid, window: int | None) -> None:
    spec = Attention(heads=8, kv_heads=2, head_dim=4, window=window)
    with jax_precision("fp64"):
        keys = jax.random.split(jax.random.key(0), 3)
        q, k, v = (
            jax.random.normal(key, (SAMPLES, LENGTH, heads, 4)) for key, heads in zip(keys, (8, 2, 2), strict=True)
        )

        def total(grid: DeviceGrid | None, *values: jax.Array) -> jax.Array:
            places = jnp.asarray(order_on(grid, LENGTH))
            return (mixed(spec, grid, *values) * places[None, :, None, None]).sum()

        expected = jax.grad(lambda *values: total(None, *values), argnums=(0, 1, 2))(q, k, v)
        held = [in_rank_order(grid, values) for values in (q, k, v)]
        found, text = compiled(grid, jax.grad(lambda *values: total(grid, *values), argnums=(0, 1, 2)), *held)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, in_rank_order(grid, other), atol=1e-9)
    assert collectives(text, kind) > 0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("grid", "sends", "gathers"),
    [
        (DeviceGrid.of(data=8, expert=4), 1, 0),
        # Ranks of experts that are data ranks and tensor ranks: one exchange over both.
        (DeviceGrid.of(data=4, tensor=2, expert=4), 1, 0),
        (DeviceGrid.of(data=4, tensor=2, expert=2, expert_tensor=2), 1, 1),
        (DeviceGrid.of(data=4, context=(("p2p", 2),), expert=4), 1, 0),
        (DeviceGrid.of(data=4, tensor=2), 0, 0),
    ],
)
def test_experts_on_their_ranks_are_those_of_one_device(grid: DeviceGrid, sends: int, gathers: int, bias: bool) -> None:
    spec = MoeMlp(experts=4, top_k=2, ffn_hidden=8, gated=not bias, bias=bias)
    drawn = expert_weights(spec, WIDTH, jax.random.key(0), 1.0)
    weights = {name: drawn[name] + 0.1 for name in OF_EACH if name in drawn}
    # Three seats, which two ranks do not share evenly.
    x = jax.random.normal(jax.random.key(1), (4, 8, 3, WIDTH))
    expected = through_experts(None, weights, x)
    found, text = compiled(grid, lambda own, values: through_experts(grid, own, values), weights, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # There and back.
    assert collectives(text, "all-to-all") == 2 * sends
    assert collectives(text, "all-gather") >= gathers


def test_a_layer_of_experts_trains_with_four_all_to_all() -> None:
    grid = DeviceGrid.of(data=8, expert=4)
    spec = MoeMlp(experts=4, top_k=2, ffn_hidden=8, gated=True)
    drawn = expert_weights(spec, WIDTH, jax.random.key(0), 1.0)
    weights = {name: drawn[name] for name in OF_EACH if name in drawn}
    x = jax.random.normal(jax.random.key(1), (4, 8, 3, WIDTH))
    slope = jax.grad(lambda own, values: (through_experts(grid, own, values) ** 2).sum(), argnums=(0, 1))
    _, text = compiled(grid, slope, weights, x)
    assert collectives(text, "all-to-all") == 4
