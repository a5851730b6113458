"""The MLPs of experts on the tokens that were sent to them: on one device, and with experts spread over ranks.

    all-to-all         expert ranks send every token to the rank of its expert, and the result back
    all-gather         expert tensor ranks take each other's tokens, and each multiplies by its part of the expert
    reduce-scatter     their results are added, and each keeps those of its own tokens

Source: Lepikhin et al. 2020, GShard, section 3.3; Liu et al. 2025, "MoE Parallel Folding", section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.zoo.splits import expert_axes

Weights = dict[str, jax.Array]
SAMPLES, SEATS = 1, 2
"""Axes of [experts, samples, seats, hidden]."""


def through_experts(grid: DeviceGrid | None, weights: Weights, x: jax.Array) -> jax.Array:
    """Every expert's MLP on its own tokens.

    Args:
        grid: of the devices; None for one device.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [experts, samples, seats, hidden].
    """
    if grid is None:
        return _mlps(weights, x, lambda values: values)
    # Ranks that do not split samples split the seats of a sample; rows that fill up the last share are cut off again.
    rows: dict[int, Axes] = {SAMPLES: grid.data, SEATS: (*grid.tokens, *grid.tensor)}
    seats = x.shape[SEATS]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -seats % grid.size(rows[SEATS])), (0, 0)))
    split = PartitionSpec(None, *(axes or None for axes in rows.values()))
    sent, shared = ([(at, own) for at, axes in rows.items() if (own := tuple(axis for axis in axes if axis in of))]
                    for of in (grid.expert, grid.expert_tensor))  # fmt: skip

    def gathered_sum(values: jax.Array) -> jax.Array:
        for at, axes in reversed(shared):
            values = jax.lax.psum_scatter(values, axes, scatter_dimension=at, tiled=True)
        return values

    def ranks(own: Weights, values: jax.Array) -> jax.Array:
        for at, axes in sent:
            values = jax.lax.all_to_all(values, axes, 0, at, tiled=True)
        for at, axes in shared:
            values = jax.lax.all_gather(values, axes, axis=at, tiled=True)
        values = _mlps(own, values, gathered_sum)
        for at, axes in reversed(sent):
            values = jax.lax.all_to_all(values, axes, at, 0, tiled=True)
        return values

    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    made = jax.shard_map(ranks, mesh=grid.mesh, in_specs=(placed, split), out_specs=split)(weights, x)
    return made[:, :, :seats]


def _mlps(weights: Weights, x: jax.Array, summed: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """down(gelu(up x)), or down(silu(gate x) * up x), of each expert; what ranks hold parts of is summed over them."""

    def through(name: str, values: jax.Array) -> jax.Array:
        product = jnp.einsum("ebch,ehf->ebcf", values, weights[name])
        product = summed(product) if name == "down" else product
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias[:, None, None, :]

    wide = jax.nn.silu(through("gate", x)) * through("up", x) if "gate" in weights else jax.nn.gelu(through("up", x))
    return through("down", wide)
