"""Parts of a decoder on a tensor grid: each a `shard_map` in which ranks work on their blocks of weights and tokens.

It stands inside of another over the data ranks, which share nothing in it: a step whose data ranks run by themselves
takes what is inside, and its gradients are sums of one data rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from meshwright.compiler.grid import DeviceGrid
from meshwright.strategies.blocks import Names, TensorBlocks
from meshwright.zoo.blocks import Blocked
from meshwright.zoo.splits import block_split


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBlocks:
    """Runs parts of a model on the blocks of a grid."""

    grid: DeviceGrid
    blocks: TensorBlocks

    @classmethod
    def of(cls, grid: DeviceGrid | None) -> OnBlocks | None:
        """The parts of a grid whose tensor ranks hold blocks; None of others.

        Args:
            grid: the grid of the devices.
        """
        return None if grid is None or grid.blocks is None else cls(grid=grid, blocks=grid.blocks)

    def embedded(self, part: Callable[..., jax.Array], weights: Any, tokens: jax.Array) -> jax.Array:
        """The stream of tokens; those of all ranks that share the table's rows go to each of these.

        Args:
            part: the part of weights, tokens and what is held.
            weights: the weights of the embedding.
            tokens: [samples, length].
        """
        stream = self.blocks.stream
        rows = self._rows(tuple(name for name in stream.samples if name not in self.blocks.table))
        given = PartitionSpec(*rows, self.grid.tokens)
        return self._mapped(part, "embedding", weights, [given], self.grid.activations(stream))(weights, tokens)

    def layer(self, part: Callable[..., jax.Array], weights: Any, x: jax.Array, keys: jax.Array) -> jax.Array:
        """The stream behind a layer.

        Args:
            part: the part of weights, the stream, keys of dropout and what is held.
            weights: the weights of the layer.
            x: [samples, length, hidden].
            keys: one per sample.
        """
        stream = self.grid.activations(self.blocks.stream)
        rows = self._rows(self.blocks.stream.samples)
        return self._mapped(self._split(part), "", weights, [stream, rows], stream)(weights, x, keys)

    def experts(
        self,
        part: Callable[..., tuple[jax.Array, jax.Array]],
        weights: Any,
        attended: tuple[jax.Array, jax.Array],
        keys: jax.Array,
        *,
        together: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """The stream behind a layer's experts, and how unbalanced the router was for each sample.

        Args:
            part: the part of weights, what the attention leaves, keys of dropout and what is held.
            weights: the weights of the experts.
            attended: what the experts are given, and the stream beside them: [samples, length, hidden].
            keys: one per sample.
            together: whether data ranks share experts, so that one map is written for all ranks.
        """
        stream = self.grid.activations(self.blocks.stream)
        rows = self._rows(self.blocks.stream.samples)
        given = [(stream, stream), rows]
        mapped = self._mapped(self._split(part), "", weights, given, (stream, rows), together=together)
        return mapped(weights, attended, keys)

    def _split(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """A part of a layer on the samples of a rank, or on halves of them."""
        return part if self.blocks.parts == 1 else partial(_in_parts, part, self.blocks.parts)

    def losses(self, part: Callable[..., jax.Array], weights: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        """The loss of every token [samples, length].

        Args:
            part: the part of weights, the stream, the wanted tokens and what is held.
            weights: the weights of embedding and head.
            x: [samples, length, hidden].
            wanted: [samples, length].
        """
        inner = self.blocks.inner
        rows = PartitionSpec(*self._rows(inner.samples), (*self.grid.tokens, *self.grid.block_axes(inner.length)))
        stream = self.grid.activations(self.blocks.stream)
        return self._mapped(part, "", weights, [stream, rows], rows)(weights, x, wanted)

    def _mapped(
        self,
        part: Callable[..., Any],
        owner: str,
        weights: Any,
        given: list[Any],
        made: Any,
        *,
        together: bool = False,
    ) -> Callable[..., Any]:
        held = Blocked(grid=self.grid, blocks=self.blocks)

        def placed(path: Any, leaf: Any) -> PartitionSpec:
            axes = block_split(self.grid, f"{owner}.{jax.tree_util.keystr(path, simple=True, separator='.')}")
            return self.grid.spec(axes, leaf.shape)

        specs = (jax.tree_util.tree_map_with_path(placed, weights), *given)
        return on_ranks(self.grid, lambda *values: part(*values, held), specs, made, together=together)

    def _rows(self, samples: Names) -> PartitionSpec:
        """How ranks share samples."""
        return PartitionSpec((*self.grid.data, *self.grid.block_axes(samples)))


def _in_parts(part: Callable[..., Any], count: int, weights: Any, x: Any, keys: jax.Array, held: Blocked) -> Any:
    """A layer on each of some parts of the samples, none of which reads another: sums of one part over ranks can travel
    while another computes. Gradients of weights are added up before ranks sum them, once.

    Source: Wang et al. 2024 (Domino, arXiv 2409.15241), section 3.1.
    """
    own = jax.tree.map(held.of_this_rank, weights)
    leaves, tree = jax.tree.flatten((x, keys))
    # Split once: the gradients of its parts are then put together, where those of several splits would be added.
    parts = [tree.unflatten(ones) for ones in zip(*(jnp.split(leaf, count) for leaf in leaves), strict=True)]
    made = [part(own, samples, drawn, held) for samples, drawn in parts]
    return jax.tree.map(lambda *ones: jnp.concatenate(ones), *made)


def on_ranks(
    grid: DeviceGrid, part: Callable[..., Any], given: tuple[Any, ...], made: Any, *, together: bool = False
) -> Callable[..., Any]:
    """A function of what each rank holds, of what all of them hold; its data ranks outside, all others inside.

    Args:
        grid: the grid of the devices.
        part: the function.
        given: splits of its operands.
        made: the split of its result, samples first; of each where there are several.
        together: whether data ranks share something in it, so that no map of their own stands outside.
    """
    if together:
        return jax.shard_map(part, mesh=grid.mesh, in_specs=given, out_specs=made)
    inner = {name for name, _ in grid.sizes if name not in grid.data}
    mesh = grid.mesh.update_axis_types(dict.fromkeys(grid.data, AxisType.Manual))
    found = jax.shard_map(
        part, mesh=mesh, in_specs=_along(given, inner), out_specs=_along(made, inner), axis_names=inner
    )
    if grid.size(grid.data) == 1:
        return found
    return jax.shard_map(
        found,
        mesh=grid.mesh,
        in_specs=_along(given, grid.data),
        out_specs=_along(made, grid.data),
        axis_names={*grid.data},
        check_vma=False,
    )


def _along(splits: Any, axes: Collection[str]) -> Any:
    """Splits as some axes of a grid make them."""

    def along(spec: PartitionSpec) -> PartitionSpec:
        named = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
        return PartitionSpec(*(tuple(name for name in names if name in axes) or None for names in named))

    return jax.tree.map(along, splits, is_leaf=lambda value: isinstance(value, PartitionSpec))
