"""How tokens and experts meet on the devices of a grid: tokens go to the experts, in one exchange or level by level,
experts come to the tokens, or the hottest experts are copied and the rest is exchanged (`sent_once`: once each).

Every way gives the same values. Weights that come to the tokens are gathered again for backward, not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.splits import expert_axes

Weights = dict[str, jax.Array]
SAMPLES, SEATS = 1, 2
"""Axes of [experts, samples, seats, hidden]."""
PLAIN = ExpertParallel()


def through_experts(
    grid: DeviceGrid | None, weights: Weights, x: jax.Array, how: ExpertParallel = PLAIN, hot: jax.Array | None = None
) -> jax.Array:
    """Every expert's MLP on its own tokens.

    Args:
        grid: of the devices; None for one device.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [experts, samples, seats, hidden].
        how: tokens and experts meet, as plans state it.
        hot: experts whose weights are copied to every rank, so many as `how` says; None for none.
    """
    if grid is None:
        return mlps(weights, x, lambda values: values)
    # Ranks that do not split samples split the seats of a sample; rows that fill up the last share are cut off again.
    rows: dict[int, Axes] = {SAMPLES: grid.data, SEATS: (*grid.tokens, *grid.tensor)}
    # Pieces of a rank's seats follow each other, so that experts work on one while the next is exchanged.
    seats, pieces = x.shape[SEATS], 1 if how.dispatcher == "move-experts" else how.overlap_degree
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -seats % (grid.size(rows[SEATS]) * pieces)), (0, 0)))
    split = PartitionSpec(None, *(axes or None for axes in rows.values()))
    sent, shared = ([(at, own) for at, axes in rows.items() if (own := tuple(axis for axis in axes if axis in of))]
                    for of in (grid.expert, grid.expert_tensor))  # fmt: skip
    if how.dispatcher == "hierarchical":
        # One exchange after the other, each along one axis: between domains, then inside them.
        sent = [(at, (axis,)) for at, axes in sent for axis in axes]

    def gathered_sum(values: jax.Array) -> jax.Array:
        for at, axes in reversed(shared):
            values = jax.lax.psum_scatter(values, axes, scatter_dimension=at, tiled=True)
        return values

    def computed(own: Weights, values: jax.Array) -> jax.Array:
        for at, axes in shared:
            values = jax.lax.all_gather(values, axes, axis=at, tiled=True)
        return mlps(own, values, gathered_sum)

    def exchanged(own: Weights, values: jax.Array) -> jax.Array:
        parts = [through(own, part) for part in jnp.split(values, pieces, axis=SEATS)]
        return parts[0] if pieces == 1 else jnp.concatenate(parts, axis=SEATS)

    def through(own: Weights, values: jax.Array) -> jax.Array:
        for at, axes in sent:
            values = jax.lax.all_to_all(values, axes, 0, at, tiled=True)
        values = computed(own, values)
        for at, axes in reversed(sent):
            values = jax.lax.all_to_all(values, axes, at, 0, tiled=True)
        return values

    def fetched(own: Weights, values: jax.Array) -> jax.Array:
        whole = own
        for at, axes in reversed(sent):
            del at
            whole = {name: jax.lax.all_gather(matrix, axes, axis=0, tiled=True) for name, matrix in whole.items()}
        return computed(whole, values)

    def kept(primitive: Any, *_: Any, **params: Any) -> bool:
        """Of what backward needs: all but weights of other ranks."""
        return not (primitive.name.startswith("all_gather") and set(params["axis_name"]) <= set(grid.expert))

    def shadowed(own: Weights, values: jax.Array, hottest: jax.Array) -> jax.Array:
        held = own["up"].shape[0]
        mine = jax.nn.one_hot(hottest - held * jax.lax.axis_index(grid.expert), held, dtype=values.dtype)
        copies = {name: jax.lax.psum(jnp.tensordot(mine, matrix, 1), grid.expert) for name, matrix in own.items()}
        here = computed(copies, values[hottest])
        away = exchanged(own, values.at[hottest].set(0.0))
        return away.at[hottest].set(here)

    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    if hot is not None and grid.expert:
        ranks = jax.shard_map(shadowed, mesh=grid.mesh, in_specs=(placed, split, PartitionSpec()), out_specs=split)
        made = ranks(weights, x, hot)
    else:
        moving = how.dispatcher == "move-experts"
        body = jax.checkpoint(fetched, policy=kept) if moving else exchanged
        made = jax.shard_map(body, mesh=grid.mesh, in_specs=(placed, split), out_specs=split)(weights, x)
    return made[:, :, :seats]


def mlps(weights: Weights, x: jax.Array, summed: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """down(gelu(up x)), or down(silu(gate x) * up x), of each expert; what ranks hold parts of is summed over them."""

    def through(name: str, values: jax.Array) -> jax.Array:
        product = jnp.einsum("ebch,ehf->ebcf", values, weights[name])
        product = summed(product) if name == "down" else product
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias[:, None, None, :]

    wide = jax.nn.silu(through("gate", x)) * through("up", x) if "gate" in weights else jax.nn.gelu(through("up", x))
    return through("down", wide)
