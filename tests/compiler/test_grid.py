"""Axes of a stage's devices: every rank of dense layers and of experts is a row of whole axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from meshwright.compiler.grid import DeviceGrid, Ranks
from meshwright.errors import InputError

POWERS = st.sampled_from([1, 2, 4])


def test_dense_layers_and_experts_share_axes() -> None:
    # Tensor pairs inside four data ranks; each expert on one device, four ranks of experts.
    grid = DeviceGrid.of(data=4, tensor=2, expert=4)
    assert grid.sizes == (("data", 2), ("data1", 2), ("tensor", 2))
    assert (grid.data, grid.tensor) == (("data", "data1"), ("tensor",))
    assert (grid.expert, grid.expert_tensor) == (("data1", "tensor"), ())
    assert (grid.shards, grid.expert_shards) == (("data", "data1"), ("data",))


def test_context_levels_lie_between_tensor_and_data_the_innermost_first() -> None:
    grid = DeviceGrid.of(data=2, context=(("a2a", 2), ("p2p", 4)), tensor=2, shard_group=8)
    assert grid.context == (("a2a", ("context1",)), ("p2p", ("context",)))
    assert grid.tokens == ("context", "context1")
    assert grid.shards == grid.tokens


@given(POWERS, POWERS, POWERS, POWERS, POWERS)
def test_ranks_of_every_kind_have_their_degree(data: int, context: int, tensor: int, expert: int, part: int) -> None:
    levels = (("p2p", context),) if context > 1 else ()
    degrees: dict[str, Any] = {"data": data, "context": levels, "tensor": tensor}
    if data * context * tensor % (expert * part):
        with pytest.raises(InputError, match="etp"):
            DeviceGrid.of(**degrees, expert=expert, expert_tensor=part)
        return
    grid = DeviceGrid.of(**degrees, expert=expert, expert_tensor=part)
    sizes = [grid.size(axes) for axes in (grid.data, grid.tokens, grid.tensor, grid.expert, grid.expert_tensor)]
    assert sizes == [data, context, tensor, expert, part]
    assert grid.devices == data * context * tensor
    # Dense ranks are all axes, each once; so are those of experts.
    names = [name for name, _ in grid.sizes if data * context * tensor > 1]
    assert [*grid.data, *grid.tokens, *grid.tensor] == names
    assert [*grid.expert_shards, *grid.expert, *grid.expert_tensor] == names


def test_ranks_that_cut_across_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="tp 2 x cp 1 x dp 3 with etp 3"):
        DeviceGrid.of(data=3, tensor=2, expert_tensor=3)
    with pytest.raises(InputError, match="shard groups of 3"):
        DeviceGrid.of(data=8, shard_group=3)


def test_axes_that_ranks_do_not_divide_stay_whole() -> None:
    grid = DeviceGrid.of(data=2, tensor=2, expert=4)
    assert grid.spec({0: Ranks.EXPERT, 2: Ranks.TENSOR}, (4, 5, 6)) == P(("data", "tensor"), None, "tensor")
    assert grid.spec({0: Ranks.EXPERT, 2: Ranks.TENSOR}, (6, 5, 3)) == P()
    assert np.prod(list(grid.mesh.shape.values())) == grid.devices
