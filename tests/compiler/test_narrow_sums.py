"""Sums over ranks of numbers in 16 bits, along some axes of a mesh whose others are the partitioner's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.narrow_sums import over_ranks
from meshwright.compiler.ranks.collectives import scattered, summed
from tests.virtual_devices import eight_devices

eight_devices()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_some_axes_of_a_mesh_add_numbers_of_any_format(kind: str) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("ranks", "others"))

    def rank(values: Any) -> Any:
        (whole,) = summed([values.sum(0)], ("ranks",))
        (part,) = scattered([values.sum(0)], [0], ("ranks",), 2, flat=False)
        return whole, part

    specs = (PartitionSpec(), PartitionSpec("ranks"))
    run = jax.shard_map(
        rank, mesh=mesh, in_specs=PartitionSpec("ranks"), out_specs=specs, axis_names={"ranks"}, check_vma=False
    )
    made = jax.jit(run)(jnp.ones((16, 8), kind))
    for value in made:
        assert value.dtype == kind
        assert (np.asarray(value, np.float32) == 16.0).all()


def test_numbers_of_32_bits_are_added_as_they_are() -> None:
    total = partial(jax.lax.psum, axis_name="ranks")
    written = jax.make_jaxpr(lambda value: over_ranks(total, value), axis_env=[("ranks", 2)])(1.0)
    assert [eqn.primitive.name for eqn in written.eqns] == ["psum"]
